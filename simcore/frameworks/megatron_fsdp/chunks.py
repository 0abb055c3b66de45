"""Flat buckets in which every rank's part ends at the end of a row: tensors on a grid of chunks.

[Note: Megatron-FSDP buckets]
Megatron-Core 0.16.1 `distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py`, `_get_parameter_groups` step 3 and
`build_data_parallel_buffer_index`. Tensors are sorted by the elements of a row (all dimensions but the first), longest
first. A chunk is the longest row, made a common multiple with each row that does not fit. A tensor starts at the start
of a chunk; one that leaves part of its last chunk free shares it with the next tensor whose own rest fits there,
laid so that it ends a chunk; tensors shorter than a chunk fill what is free, the others follow at the end. The whole is
padded to ranks x chunk.
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
    """`starts` of tensors in the order they were given, and `sizes`; `numel`: the bucket with its padding. Elements."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    chunk: int
    numel: int

    def part(self, index: int, parts: int) -> tuple[int, ...]:
        """Elements of each tensor inside part `index` of the bucket."""
        low = index * (self.numel // parts)
        high = low + self.numel // parts
        return tuple(max(0, min(start + size, high) - max(start, low))
                     for start, size in zip(self.starts, self.sizes, strict=True))


@lru_cache(maxsize=256)
def lay_in_chunks(shapes: tuple[Shape, ...], parts: int) -> Chunked:
    """One bucket of tensors, cut over `parts` ranks."""
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
    """Of tensors whose longest row comes first."""
    chunk = _row(shapes[0])
    for shape in shapes:
        row, size = _row(shape), math.prod(shape)
        fits = row == chunk or (chunk % row == 0 and size % chunk == 0) or size < chunk
        chunk = chunk if fits else math.lcm(chunk, row)
    return chunk


class _Grid:
    """Where tensors start; `end` is the first free chunk."""

    def __init__(self, sizes: Sequence[int], chunk: int) -> None:
        self.sizes, self.chunk, self.end = sizes, chunk, 0
        self.starts = [0] * len(sizes)

    def lay(self, long: list[int], short: list[int]) -> None:
        """`short` ones are shorter than a chunk; both lists are used up."""
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
        """The next tensor that fits behind `rest` elements of the last chunk; gives what is left free of it."""
        for other in long:
            over = self.sizes[other] % self.chunk
            if over and rest + over <= self.chunk:
                long.remove(other)
                self.starts[other] = self.end - over
                self.end += self.sizes[other] - over
                return self.chunk - rest - over
        return self.chunk - rest

    def _fill(self, short: list[int], gap: int, space: int) -> None:
        for one in list(short):
            if self.sizes[one] <= space:
                self.starts[one] = gap
                gap += self.sizes[one]
                space -= self.sizes[one]
                short.remove(one)
