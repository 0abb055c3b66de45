"""FSDP2's strategy: units that its hooks gather ahead, and the time at which gradients are reduced and freed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.placement.strategy import DTENSOR, ParallelStrategy, RlWorker

__all__ = ["Fsdp2Strategy"]


@dataclass(frozen=True, slots=True)
class Fsdp2Strategy(ParallelStrategy):
    """Settings of FSDP2 for one job, or of a framework built on it.

    `prefetch`, `prefetch_backward`: number of units that explicit prefetch gathers ahead in forward and in backward; 0
    leaves it to the implicit prefetch. `sync`: gradients are reduced in "every" microbatch, in the "last" one, or at
    the "end", when its backward pass is over. `reshard_after_backward`: parameters are freed after each microbatch's
    backward, not only after the last. `finish`: the end of reductions is waited for, and their buffers freed, after
    "every" microbatch's backward or the "last". `unshards_passes`: all units are gathered before a policy's passes.
    `gathers_experts_ahead`: [Note: torchtitan's prefetch] in `forward_order.py`. `counts_over`: mesh axis over which
    tokens of each expert are summed up before the optimizer's step, to correct the biases of routers; "" for none.
    `divides_alone`: units, "" for none, for which the trainer sets a factor that gradients are divided by, which a unit
    of one rank does in a copy.
    """

    prefetch: int = 0
    prefetch_backward: int = 0
    sync: str = "last"
    reshard_after_backward: bool = True
    finish: str = "every"
    unshards_passes: bool = False
    gathers_experts_ahead: bool = False
    counts_over: str = ""
    divides_alone: Literal["", "experts", "all"] = ""

    @property
    def is_flat(self) -> bool:
        """False: each parameter is cut alone, as a DTensor."""
        return False

    @property
    def is_placed_by_rank(self) -> bool:
        """False: ranks with different DTensor shards are in different classes (ranks simulated as one)."""
        return False

    @property
    def gathers_on_side_streams(self) -> bool:
        """True: all-gathers have a CUDA stream for themselves.

        torch 2.13 `_fsdp_param_group.py`, FSDPCommContext: all_gather_stream.
        """
        return True

    @property
    def gathers_before_passes(self) -> bool:
        """`unshards_passes`."""
        return self.unshards_passes

    @property
    def counts_workspaces(self) -> bool:
        """False: the event traces that FSDP2 is compared with list only tensors."""
        return False

    @property
    def unit_sync(self) -> str:
        """The time at which units reduce gradients: "every" microbatch, the "last", or the "end" of the step."""
        return self.sync

    @property
    def prefetch_depth(self) -> int:
        """Number of units that the deeper of the two explicit prefetches gathers ahead."""
        return max(self.prefetch, self.prefetch_backward, 2 * self.gathers_experts_ahead)

    @property
    def rl_worker(self) -> RlWorker:
        """Worker of NeMo RL, and of verl, that trains with FSDP2."""
        return DTENSOR
