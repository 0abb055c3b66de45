"""Flat buffers: many tensors laid end to end, cut into buckets, and each bucket cut over ranks.

[Note: Megatron buffers]
Megatron-Core 0.16.1 `distributed/param_and_grad_buffer.py`: parameters in reverse registration order, each start padded
to 64 elements; a bucket closes when it holds `bucket_size` elements and its end is padded to lcm(dp, 128); with the
distributed optimizer an embedding that first and last stage share has a separate bucket; each rank owns `1 / dp` of
every bucket (`optimizer/distrib_optimizer.py`, `_build_model_gbuf_range`). The elements of each parameter in a rank's
part are computed for one rank, on request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simcore.placement.mesh import IntArray

__all__ = ["FlatBuffer", "lay_out"]


@dataclass(frozen=True, eq=False)
class FlatBuffer:
    """Layout of one flat buffer of parameters, in elements.

    `starts`, `ends`, `bucket_of` (index in `buckets`): of each parameter, in the order in which they were given.
    `buckets`: (start, end) with padding, in the order of the buffer.
    """

    starts: IntArray
    ends: IntArray
    bucket_of: IntArray
    buckets: tuple[tuple[int, int], ...]

    @property
    def numel(self) -> int:
        """Elements of the buffer, padding included."""
        return self.buckets[-1][1] if self.buckets else 0

    @property
    def padding(self) -> int:
        """Elements of the buffer that belong to no parameter."""
        return self.numel - int((self.ends - self.starts).sum())

    def part(self, index: int, parts: int) -> IntArray:
        """Returns the number of elements of each parameter in part `index`, if every bucket is cut into `parts`."""
        lows = np.array([s + index * ((e - s) // parts) for s, e in self.buckets], dtype=np.int64)
        size = np.array([(e - s) // parts for s, e in self.buckets], dtype=np.int64)
        low, high = lows[self.bucket_of], (lows + size)[self.bucket_of]
        inside: IntArray = np.minimum(self.ends, high) - np.maximum(self.starts, low)
        return np.maximum(inside, 0)


def lay_out(sizes: Sequence[int], *, bucket_numel: int, align_param: int, align_bucket: int,
            alone: Collection[int] = ()) -> FlatBuffer:
    """Returns the layout of a buffer, with parameters in reverse of the given (registration) order.

    `sizes`: elements of each. A bucket is closed when it has `bucket_numel` elements; 0: one bucket. Starts of
    parameters and ends of buckets are rounded up to multiples of `align_param` and `align_bucket`. `alone`: indices of
    parameters that have a separate bucket each (`_does_param_require_new_bucket`).
    """
    return _lay_out(tuple(sizes), bucket_numel, align_param, align_bucket, frozenset(alone))


@lru_cache(maxsize=64)
def _lay_out(sizes: tuple[int, ...], bucket_numel: int, align_param: int, align_bucket: int,
             alone: frozenset[int]) -> FlatBuffer:
    starts, ends, bucket_of = ([0] * len(sizes) for _ in range(3))
    buckets: list[tuple[int, int]] = []
    at = bucket_start = 0

    def close() -> None:
        nonlocal at, bucket_start
        end = math.ceil(at / align_bucket) * align_bucket
        buckets.append((bucket_start, end))
        at = bucket_start = end

    for i in range(len(sizes) - 1, -1, -1):
        at = math.ceil(at / align_param) * align_param
        if i in alone and at > bucket_start:
            close()
        starts[i], ends[i], bucket_of[i] = at, at + sizes[i], len(buckets)
        at += sizes[i]
        if i in alone or (bucket_numel and at - bucket_start >= bucket_numel):
            close()
    if at > bucket_start:
        close()
    as_array = [np.array(column, dtype=np.int64) for column in (starts, ends, bucket_of)]
    return FlatBuffer(as_array[0], as_array[1], as_array[2], tuple(buckets))
