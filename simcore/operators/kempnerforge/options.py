"""Options of KempnerForge's layers."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.recording.options import ImplementationOptions

__all__ = ["KempnerforgeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KempnerforgeOptions(ImplementationOptions):
    """Options of KempnerForge's layers in one run.

    `is_stage`: the layers are of a pipeline stage, which keeps all microbatches' logits. `compiled`: linears of one
    input gather it once. `packed_experts`: moe_packed_experts, one parameter for all experts' matrices of a name.
    `imbalance`: rows of the fullest expert over the mean.
    """

    is_stage: bool = False
    compiled: bool = False
    packed_experts: bool = False
    imbalance: float = 1.0

    @property
    def outputs_whole_vocabulary(self) -> bool:
        """True in a pipeline stage, whose last one outputs logits of the whole vocabulary."""
        return self.is_stage
