"""What Python does in Automodel's own layers beside their kernels: for how many operators of torch it keeps the host.

Layers of nemo-automodel 0.7.0 were run with kernels that do nothing (`tests/truth/host/automodel-0.7.0.json`): calls of
modules, the guards of what torch compiled, hand-overs between DTensors and their parts, Automodel's side of DeepEP. A
kernel that is told of by itself is one of a layer's operators; the others are these. Python is 16 of the 21 us of an
operator (`host.operator`). Timed on Nemotron-H; other families, whose norms, experts and linear layers are the same,
and HybridEP are assumed alike.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, LatentAttention, Mamba2, Mlp, Moe
from simcore.operators.counted import Operators
from simcore.tape import Tape, Tensor

__all__ = ["ALONE", "BESIDE", "around"]

BESIDE: Final[dict[type, Operators]] = {
    Mamba2: Operators(44, 11), Attention: Operators(45, 25), LatentAttention: Operators(45, 25), Mlp: Operators(28, 10),
    Moe: Operators(115, 75)}
"""By a layer's block, its norm and its residual included. (timed - kernels) * 16 / 21: kernels of a Mamba-2 layer
beside its scan 8 and 14, of attention 7 and 14, of an MLP 6 and 11, of experts beside their permutation 28 and 33."""
ALONE: Final = Operators(120, 50)
"""Of experts that are not spread over ranks, which have neither DTensors nor DeepEP: beside 44 and 41 kernels."""


def around(tape: Tape, x: Tensor, num: Operators) -> Tensor:
    """The block's input, with that much of the host's time before it is used and when its gradient is there."""
    tape.python(num.forward)
    if x.node is None:
        return x

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        tape.python(num.backward)
        return list(grads)

    return Tensor(x.storage, x.shape, x.dtype, tape.node((x,), (), backward))
