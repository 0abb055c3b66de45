"""Flat buckets in which every rank's shard ends at the end of a row: tensors on a grid of chunks.

[Note: Megatron-FSDP buckets]
Megatron-Core 0.16.1 `distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py`, `_get_parameter_groups` step 3 and
`build_data_parallel_buffer_index`. Tensors are sorted by the elements of a row (all dimensions but the first), longest
first. A chunk is the longest row, made a common multiple with each row that does not fit. A tensor starts at the start
of a chunk; if it leaves a part of its last chunk free, the next tensor whose remainder fits there is placed so that it
ends at a chunk's end; tensors shorter than a chunk fill free space, the others follow at the end. The bucket is padded
to ranks x chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Chunked", "lay_in_chunks"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunked:
    """Layout of one bucket, in elements: where each tensor lies in the flat buffer.

    `starts`, `sizes`: of the tensors, in the order in which they were given. `chunk`: the grid on which long tensors
    begin. `numel`: of the bucket, with padding.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    chunk: int
    numel: int

    def part(self, index: int, parts: int) -> tuple[int, ...]:
        """Returns the elements of each tensor in shard `index`, of `parts` equal shards of the bucket."""
        low = index * (self.numel // parts)
        high = low + self.numel // parts
        return tuple(max(0, min(start + size, high) - max(start, low))
                     for start, size in zip(self.starts, self.sizes, strict=True))


@lru_cache(maxsize=256)
def lay_in_chunks(shapes: tuple[Shape, ...], parts: int) -> Chunked:
    """Returns the layout of one bucket of tensors of these `shapes`, which is cut over `parts` ranks."""
    sizes = [math.prod(shape) for shape in shapes]
    order = sorted(range(len(shapes)), key=lambda i: -_row(shapes[i]))
    chunk = _chunk([shapes[i] for i in order])
    grid = _Grid(sizes, chunk)
    grid.lay([i for i in order if sizes[i] >= chunk], [i for i in order if sizes[i] < chunk])
    unit = parts * chunk
    return Chunked(tuple(grid.starts), tuple(sizes), chunk, -(-grid.end // unit) * unit)


def _row(shape: Shape) -> int:
    return math.prod(shape[1:])


def _chunk(shapes: Sequence[Shape]) -> int:
    """Elements of a chunk for tensors sorted by row, the longest first."""
    chunk = _row(shapes[0])
    for shape in shapes:
        row, size = _row(shape), math.prod(shape)
        fits = row == chunk or (chunk % row == 0 and size % chunk == 0) or size < chunk
        chunk = chunk if fits else math.lcm(chunk, row)
    return chunk


class _Grid:
    """Starts of tensors; `end` is the first free chunk."""

    def __init__(self, sizes: Sequence[int], chunk: int) -> None:
        self.sizes, self.chunk, self.end = sizes, chunk, 0
        self.starts = [0] * len(sizes)

    def lay(self, long: list[int], short: list[int]) -> None:
        """Places tensors; `short` ones are shorter than a chunk; both lists are consumed."""
        while long:
            first = long.pop(0)
            self.starts[first] = self.end
            rest = self.sizes[first] % self.chunk
            gap = self.end + self.sizes[first]
            self.end = -(-gap // self.chunk) * self.chunk
            if rest:
                self._fill(short, gap, self._share(long, rest))
        for last in short:
            self.starts[last] = self.end
            self.end += self.sizes[last]

    def _share(self, long: list[int], rest: int) -> int:
        """Places the next tensor that fits after `rest` elements of the last chunk; returns the elements still free."""
        for other in long:
            over = self.sizes[other] % self.chunk
            if over and rest + over <= self.chunk:
                long.remove(other)
                self.starts[other] = self.end - over
                self.end += self.sizes[other] - over
                return self.chunk - rest - over
        return self.chunk - rest

    def _fill(self, short: list[int], gap: int, space: int) -> None:
        for tensor in list(short):
            if self.sizes[tensor] <= space:
                self.starts[tensor] = gap
                gap += self.sizes[tensor]
                space -= self.sizes[tensor]
                short.remove(tensor)
