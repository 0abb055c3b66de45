"""Parallel strategy of torch's DistributedDataParallel: unsharded parameters, gradients all-reduced in buckets.

[Note: the reducer] torch 2.13 `nn/parallel/distributed.py`, `csrc/distributed/c10d/reducer.cpp`. Buckets are flat
persistent tensors, with an element for each element of every gradient. From the second step on they follow the order in
which gradients became ready (`should_rebuild_buckets`): a bucket closes when it has reached its cap, the first one of
each dtype at `_DEFAULT_FIRST_BUCKET_BYTES` (`compute_bucket_assignment_by_size`). Without `gradient_as_bucket_view` a
gradient is copied in when it is ready and back when all are reduced (`mark_variable_ready_dense`,
`finalize_bucket_dense`), and exists in addition to its bucket until zero_grad frees it; with it a gradient is a view of
its bucket, and the gradient that autograd made is freed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.placement.strategy import ParallelStrategy

__all__ = ["FIRST_BUCKET_BYTES", "DdpStrategy"]

FIRST_BUCKET_BYTES: Final = 2**20
"""torch 2.13 csrc/distributed/c10d/reducer.hpp kDefaultFirstBucketBytes."""


@dataclass(frozen=True, slots=True)
class DdpStrategy(ParallelStrategy):
    """DDP's settings for one job.

    `axis`: mesh axis over which gradients are all-reduced; "": one process, without buckets and traffic. `first_bytes`,
    `bucket_bytes`: size in bytes of gradients at which the first bucket of a dtype, and each other one, is full and
    reduced. `is_view`: gradients are views of buckets (`gradient_as_bucket_view`).
    """

    axis: str = ""
    first_bytes: int = FIRST_BUCKET_BYTES
    bucket_bytes: int = 25 * 2**20
    is_view: bool = False

    @property
    def holds_whole_parameters(self) -> bool:
        """True: every rank has all parameters."""
        return True

    @property
    def holds_whole_states(self) -> bool:
        """True: every rank has all optimizer states."""
        return True

    @property
    def is_flat(self) -> bool:
        """False: nothing is sharded."""
        return False
