"""Inputs of single layers, slices of one tensor that the model makes for all (`Gemma4TextDecoderLayer`).

The slice is taken before the layer is called, so that its gradient waits until all of the layer is differentiated, and
hooks behind it have run. It is then written into zeros of the whole tensor (torch 2.13 `derivatives.yaml`, select), and
added to that of the layers above in a new tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.models.blocks import LayerKind
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import AFTER, BEFORE
from simcore.operators.shared.rms_norm import rms_norm_by_power
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Node, Section, Tape, Tensor

__all__ = ["GRAD_OF_ALL", "OF_ALL", "OwnInputs", "add_own_input"]

OF_ALL: Final = "per_layer_inputs"
"""Storage of the inputs of all layers, [batch, seq, layers, size]."""
GRAD_OF_ALL: Final = "per_layer_inputs.grad"


Linear = Callable[[Tape, LayerWorkload, str, Tensor], Tensor]


class OwnInputs:
    """The tensor of which the layer's input is a slice; `slice`: [batch, seq, size].

    The lowest layer frees the tensor. Each leaves a gradient of all of it to the layer below.
    """

    def __init__(self, tape: Tape, kind: LayerKind, run: LayerWorkload) -> None:
        own = kind.own_input
        assert own is not None
        self._shape, self._dtype, self._is_last = (run.batch, run.seq, own.layers, own.size), run.compute, own.last
        whole = tape.external(self._shape, run.compute, tape.slot(OF_ALL, "activation"), BEFORE)
        if not run.first:
            whole.disown()
        self._leaf = Node() if run.inputs_train else None
        self.slice: Tensor | None = Tensor(whole.storage, (run.batch, run.seq, own.size), run.compute, self._leaf)

    def behind(self, tape: Tape) -> Section:
        """Leaves the gradient to the layer below, or to what has made the tensor."""
        if self._leaf is not None:
            own: Tensor | None = self._leaf.grads.pop(0)
            assert own is not None
            total = aten.new(tape, self._shape, self._dtype, "grad_select", own.nbytes, Kernel.COPY)
            own = None
            if not self._is_last:
                total = self._added(tape, total)
            tape.rename(total.storage, tape.slot(GRAD_OF_ALL, "backward_temp"))
            total.disown()
        return tape.cut()

    def _added(self, tape: Tape, own: Tensor) -> Tensor:
        waiting = tape.external(self._shape, self._dtype, tape.slot(GRAD_OF_ALL, "backward_temp"), AFTER)
        return tape.add_grads(waiting, own)


def add_own_input(tape: Tape, run: LayerWorkload, x: Tensor, own: Tensor, linear: Linear) -> Tensor:
    """`x` [b, s, h] with what comes of it and of the layer's input `own` [b, s, size], in a new tensor.

    `linear`: (tape, run, name of the module, x) -> its output.
    """
    tape.scope = ""
    residual = x
    x = aten.gelu(tape, linear(tape, run, "per_layer_input_gate", residual))
    x = aten.mul(tape, x, own)
    x = linear(tape, run, "per_layer_projection", x)
    tape.scope = "post_per_layer_input_norm."
    x = rms_norm_by_power(tape, run.params["post_per_layer_input_norm.weight"], x)
    tape.scope = ""
    return aten.add(tape, residual, x, "residual")
