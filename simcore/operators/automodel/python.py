"""Host time of Python in Automodel's own layers besides their kernels, counted in operators of torch.

Layers of nemo-automodel 0.7.0 were run with kernels that do nothing (`tests/truth/host/automodel-0.7.0.json`): calls of
modules, the guards of what torch compiled, hand-overs between DTensors and their parts, Automodel's side of DeepEP. A
kernel that the layer records is counted there as one operator; this module counts the rest. Timed on Nemotron-H; other
families, whose norms, experts and linear layers are the same, and HybridEP are assumed to take as long, and a gated
delta net as long as Mamba-2.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mlp, Moe
from simcore.recording.host_operators import (
    AUTOMODEL_ATTENTION,
    AUTOMODEL_LOCAL_MOE,
    AUTOMODEL_MAMBA,
    AUTOMODEL_MLP,
    AUTOMODEL_MOE,
    Operators,
)
from simcore.recording.tape import Tape, Tensor

__all__ = ["ALONE", "BESIDE", "around"]

BESIDE: Final[dict[type, Operators]] = {
    Mamba2: AUTOMODEL_MAMBA, GatedDeltaNet: AUTOMODEL_MAMBA, Attention: AUTOMODEL_ATTENTION,
    LatentAttention: AUTOMODEL_ATTENTION, Mlp: AUTOMODEL_MLP, Moe: AUTOMODEL_MOE}
"""By a layer's block, its norm and its residual included; a scan and permutations are not in it, nor their kernels."""
ALONE: Final = AUTOMODEL_LOCAL_MOE
"""Experts that are not spread over ranks."""


def around(tape: Tape, x: Tensor, num: Operators) -> Tensor:
    """Returns `x`, a block's input, after it has recorded the host time of the block's Python code.

    `num`: that time, for forward and backward, in torch operators; the backward part is recorded when the gradient of x
    is there.
    """
    tape.python(num.forward)
    if x.node is None:
        return x

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        tape.python(num.backward)
        return list(grads)

    return Tensor(x.storage, x.shape, x.dtype, tape.node((x,), (), backward))
