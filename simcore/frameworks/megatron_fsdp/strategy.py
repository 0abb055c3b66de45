"""Parallel strategy of Megatron-FSDP: sharded flat buckets, their prefetch and the queue of reductions."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.placement.strategy import ParallelStrategy

__all__ = ["MegatronFsdpStrategy"]


@dataclass(frozen=True, slots=True)
class MegatronFsdpStrategy(ParallelStrategy):
    """Megatron-FSDP's settings for one job: flat buckets, gathered ahead and reduced into a queue.

    Sizes in elements. `ahead`: most that is gathered beyond the requested buckets; `waiting`: reduced gradients that
    stay unsharded until there are more. `bucket_numel`: size at which a bucket of tensors of no unit is closed, 0 for
    never. `axes`: mesh axes over which (dense, expert) parameters are cut. `frees_at_end`: buckets gathered after the
    step are freed before the next one. `keeps_outside`: buckets of no unit stay gathered and prefetch nothing in
    forward. `reduces_in_place`: a reduced shard is a view of its bucket. `double_buffer`: equal units share two
    buffers. `replicate_axis`: mesh axis over which reduced shards are summed in the last microbatch, "" for none.
    `has_columns`: weights in fp8 are in two buffers, rows for forward and columns for backward. `gathers_first`: the
    first buckets are gathered after the step, not in the next forward. `nccl_ub`: shards and shared buffers are in a
    memory pool that NCCL registers. `shards_outer`: states of a shard are cut over `replicate_axis`, whose ranks reduce
    gradients to their parts of it and gather parameters from them. `comm_dtype`: of whole gradients, and of what is
    sent; a shard is added to one in `grad_dtype`.
    """

    ahead: int
    waiting: int
    bucket_numel: int
    axes: tuple[str, str]
    grad_dtype: str
    comm_dtype: str
    frees_at_end: bool = False
    keeps_outside: bool = False
    reduces_in_place: bool = False
    double_buffer: bool = False
    replicate_axis: str = ""
    has_columns: bool = False
    gathers_first: bool = True
    nccl_ub: bool = False
    shards_outer: bool = False
