"""How Megatron-Core's DistributedDataParallel and distributed optimizer share buffers between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.placement.strategy import ParallelStrategy

__all__ = ["MegatronDdpStrategy"]


@dataclass(frozen=True, slots=True)
class MegatronDdpStrategy(ParallelStrategy):
    """Gradient (and parameter) buffers that are whole on every rank and reduced bucket by bucket.

    `axes`: (dense, expert) axes over which gradients are reduced; `scatter`: reduce-scatter (distributed optimizer) or
    all-reduce; `param_gather`: parameters are gathered after the step, in `gather_dtype` if not as they are stored.
    `overlap`: buckets are reduced during backward; `gathers_ahead`: gathered during the next forward. Sizes in
    elements.
    """

    bucket_numel: int
    axes: tuple[str, str]
    replicate_axes: tuple[str, str]
    grad_dtype: str
    scatter: bool
    param_gather: bool
    align_param: int
    align_bucket: int
    overlap: bool = True
    gathers_ahead: bool = True
    gather_dtype: str = ""

    @property
    def holds_whole_parameters(self) -> bool:
        """Parameters are gathered after the optimizer step and stay."""
        return True

    @property
    def holds_whole_states(self) -> bool:
        """Without the distributed optimizer every rank has all states."""
        return not self.scatter

    @property
    def is_flat(self) -> bool:
        """The distributed optimizer cuts flat buffers."""
        return self.scatter

    @property
    def rl_worker(self) -> Literal["dtensor", "megatron", ""]:
        """NeMo RL 7ea279ab `megatron_policy_worker.py`."""
        return "megatron"
