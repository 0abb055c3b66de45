"""Buffers that Megatron-Core's DistributedDataParallel and distributed optimizer share between ranks."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.placement.strategy import MEGATRON, ParallelStrategy, RlWorker

__all__ = ["MegatronDdpStrategy"]


@dataclass(frozen=True, slots=True)
class MegatronDdpStrategy(ParallelStrategy):
    """Settings of Megatron-Core's DistributedDataParallel and distributed optimizer for one job.

    Gradient and parameter buffers are whole on every rank and reduced bucket by bucket. Sizes in elements:
    `bucket_numel` (0: one bucket), `align_param`, `align_bucket`. `axes`: mesh axes over which gradients of (dense,
    expert) parameters are reduced; `replicate_axes`: those over which the reduced parts are summed again, "" for none.
    `scatter`: reduce-scatter (distributed optimizer), otherwise all-reduce. `param_gather`: parameters are gathered
    after the step, in `gather_dtype` if not as they are stored. `overlap`: buckets are reduced during backward;
    `gathers_ahead`: gathered during the next forward. `nccl_ub`: buffers are in memory pools that NCCL registers.
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
    nccl_ub: bool = False

    @property
    def holds_whole_parameters(self) -> bool:
        """True: parameters are gathered after the optimizer's step and stay whole."""
        return True

    @property
    def holds_whole_states(self) -> bool:
        """True without the distributed optimizer: every rank has all states."""
        return not self.scatter

    @property
    def is_flat(self) -> bool:
        """True with the distributed optimizer, which cuts flat buffers of many tensors."""
        return self.scatter

    @property
    def elements_per_call(self) -> int:
        """Elements at which a bucket is closed."""
        return self.bucket_numel

    @property
    def rl_worker(self) -> RlWorker:
        """Worker of NeMo RL, and of verl, that trains with Megatron."""
        return MEGATRON
