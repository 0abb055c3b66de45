"""How Megatron-FSDP shards flat buckets: what is gathered ahead, what waits for its reduction."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.placement.strategy import ParallelStrategy

__all__ = ["MegatronFsdpStrategy"]


@dataclass(frozen=True, slots=True)
class MegatronFsdpStrategy(ParallelStrategy):
    """Flat buckets that are gathered ahead of their use and reduced into a queue, both counted in elements.

    `ahead`: gathered beyond what is asked for; `waiting`: reduced, and kept whole until more than this many wait.
    `bucket_numel` closes a bucket of tensors that are in no unit, 0 never does. `axes`: (dense, expert).
    `frees_at_end`: what is gathered after the step is freed before the next one. `keeps_outside`: buckets of no unit
    stay whole for good and bring nothing ahead in forward. `reduces_in_place`: a reduced part is a piece of its bucket.
    `double_buffer`: units that are alike share two buffers. `replicate_axis`: reduced parts are summed over it in the
    last microbatch. `has_columns`: weights in fp8 lie in two buffers, rows for forward and columns for backward.
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
