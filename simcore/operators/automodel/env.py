"""Surroundings of the operators of one layer: its tape, parameters, options, a checkpoint's cache; Python around them.

[Note: host time of Python]
Layers of nemo-automodel 0.7.0 were run with kernels that do nothing (`tests/truth/host/automodel-0.7.0.json`): calls of
modules, the guards of what torch compiled, hand-overs between DTensors and their parts, Automodel's side of DeepEP. A
kernel that the layer records is counted there as one operator; `around` counts the rest. Timed on Nemotron-H; other
families, whose norms, experts and linear layers are the same, and HybridEP are assumed to take as long, and a gated
delta net as long as Mamba-2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from simcore.models.blocks import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mlp, Moe
from simcore.operators.automodel.options import AutomodelOptions
from simcore.recording.host_operators import (
    AUTOMODEL_ATTENTION,
    AUTOMODEL_LOCAL_MOE,
    AUTOMODEL_MAMBA,
    AUTOMODEL_MLP,
    AUTOMODEL_MOE,
    Operators,
)
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import Scaling
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["ALONE", "BESIDE", "Env", "around"]

BESIDE: Final[dict[type, Operators]] = {
    Mamba2: AUTOMODEL_MAMBA, GatedDeltaNet: AUTOMODEL_MAMBA, Attention: AUTOMODEL_ATTENTION,
    LatentAttention: AUTOMODEL_ATTENTION, Mlp: AUTOMODEL_MLP, Moe: AUTOMODEL_MOE}
"""By a layer's block, its norm and its residual included; a scan and permutations are not in it, nor their kernels."""
ALONE: Final = AUTOMODEL_LOCAL_MOE
"""Experts that are not spread over ranks."""


@dataclass(slots=True)
class Env:
    """Things that every operator of one recorded layer needs: its tape, workload and options.

    `held`: tensors that the decoder layer holds until it returns; `lent`: those that others hold longer. `cache`:
    results that a checkpoint keeps for its replay, by name; None outside such a checkpoint. `fp8`: the layer's products
    by TransformerEngine are in 8 bits. `begins`, `ends`: the first and the last of several runs of the same layer.
    """

    tape: Tape
    run: LayerWorkload
    options: AutomodelOptions
    cache: dict[str, tuple[Tensor, ...]] | None = None
    held: list[Tensor] = field(default_factory=list)
    lent: list[Tensor] = field(default_factory=list)
    fp8: bool = False
    begins: bool = True
    ends: bool = True

    @property
    def scaling(self) -> Scaling:
        """Recipe of products in 8 bits."""
        return Scaling(self.options.fp8_recipe, self.options.fp8_transposes)

    def param(self, name: str) -> Param:
        """Parameter with the given name, relative to the layer. Raises KeyError if the layer has none."""
        return self.run.params[name]

    def adapters(self, path: str) -> tuple[Param, Param] | None:
        """LoRA matrices (A, B) of the linear layer at `path`; None if it has no adapter."""
        a = self.run.params.get(f"{path}.lora_A.weight")
        return (a, self.run.params[f"{path}.lora_B.weight"]) if a is not None else None

    def kept(self, name: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Result of `make()`; in the replay of a checkpoint that keeps it, the result of the first run.

        `name`: key under which the checkpoint keeps it. Outside such a checkpoint nothing is kept.
        """
        if self.cache is None:
            return make()
        if self.tape.phase == "recompute":
            return self.cache.pop(name)
        made = make()
        self.cache[name] = tuple(t.detach() for t in made)
        return made


def around(tape: Tape, x: Tensor, num: Operators) -> Tensor:
    """Returns `x`, a block's input, after it has recorded [Note: host time of Python] of the block.

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
