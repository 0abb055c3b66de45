"""How FSDP2 shards: what its hooks gather ahead, when gradients are reduced and freed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.placement.strategy import ParallelStrategy

__all__ = ["Fsdp2Strategy"]


@dataclass(frozen=True, slots=True)
class Fsdp2Strategy(ParallelStrategy):
    """Buffers of units that are gathered for use (FSDP2 and what is built on it).

    `prefetch`, `prefetch_backward`: units of explicit look-ahead in forward and in backward, 0 for the framework's
    implicit one.
    `sync`: reduce gradients every microbatch, or only in the last one, or at the end, when its backward pass is over.
    `reshard_after_backward`: parameters are freed after each microbatch's backward, not only after the last.
    `finish`: what is left of reductions is waited for and freed after `every` microbatch's backward, or the `last`.
    """

    prefetch: int = 0
    prefetch_backward: int = 0
    sync: str = "last"
    reshard_after_backward: bool = True
    finish: str = "every"

    @property
    def is_flat(self) -> bool:
        """Each DTensor is cut by itself."""
        return False

    @property
    def is_placed_by_rank(self) -> bool:
        """Folding separates ranks whose DTensor shards differ."""
        return False

    @property
    def gathers_on_side_streams(self) -> bool:
        """Torch 2.13 `_fsdp_param_group.py`, FSDPCommContext: all_gather_stream."""
        return True

    @property
    def counts_workspaces(self) -> bool:
        """False: the event traces that FSDP2 is compared with list only tensors."""
        return False

    @property
    def unit_sync(self) -> str:
        """`sync`: units reduce in every microbatch, in the last one, or after it."""
        return self.sync

    @property
    def prefetch_depth(self) -> int:
        """The deeper of the two explicit prefetches."""
        return max(self.prefetch, self.prefetch_backward)

    @property
    def rl_worker(self) -> Literal["dtensor", "megatron", ""]:
        """NeMo RL 7ea279ab `dtensor_policy_worker_v2.py`."""
        return "dtensor"
