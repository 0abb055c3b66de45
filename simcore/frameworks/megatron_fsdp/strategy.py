"""Parallel strategy of Megatron-FSDP: sharded flat buckets, their prefetch and the queue of reductions."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.placement.strategy import ParallelStrategy

__all__ = ["MegatronFsdpStrategy"]


@dataclass(frozen=True, slots=True)
class MegatronFsdpStrategy(ParallelStrategy):
    """Flat buckets that are gathered ahead of their use and reduced into a queue, both counted in elements.

    `ahead`: elements gathered beyond the requested ones; `waiting`: reduced elements that are kept unsharded until more
    wait. `bucket_numel`: elements at which a bucket of tensors of no unit is closed, 0 for never. `axes`: (dense,
    expert). `frees_at_end`: buckets gathered after the step are freed before the next one. `keeps_outside`: buckets of
    no unit stay gathered and prefetch nothing in forward. `reduces_in_place`: a reduced shard is a view of its bucket.
    `double_buffer`: equal units share two buffers. `replicate_axis`: reduced shards are summed over it in the last
    microbatch. `has_columns`: weights in fp8 are in two buffers, rows for forward and columns for backward.
    """

    ahead: int
    waiting: int
    bucket_numel: int
    axes: tuple[str, str]
    grad_dtype: str
    frees_at_end: bool = False
    keeps_outside: bool = False
    reduces_in_place: bool = False
    double_buffer: bool = False
    replicate_axis: str = ""
    has_columns: bool = False
