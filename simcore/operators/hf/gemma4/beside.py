"""Tensors that pass between layers beside the stream: inputs of single layers, keys and values that several use."""

from __future__ import annotations

from simcore.models.blocks import Attention, LayerKind
from simcore.operators.hf.gemma4.lending import Lending
from simcore.operators.hf.gemma4.own_input import OwnInputs
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Section, Tape, Tensor

__all__ = ["Beside"]


class Beside:
    """Tensors that a layer of `kind` shares with others, apart from its hidden state; nothing in most layers.

    `keeps_hidden`: what makes inputs of layers keeps the lowest one's hidden state longer than that layer.
    """

    def __init__(self, tape: Tape, kind: LayerKind, run: LayerWorkload) -> None:
        self.keeps_hidden = kind.own_input is not None and run.first and run.inputs_train
        self.own = OwnInputs(tape, kind, run) if kind.own_input else None
        shared = [branch.block for branch in kind.branches if isinstance(branch.block, Attention) and (
            branch.block.borrows or branch.block.lent)]
        self.lending = Lending(run, shared[0]) if shared else None

    @property
    def slice(self) -> Tensor | None:
        """The layer's own input, [batch, seq, size]; None without one, or when the model has let it go."""
        return None if self.own is None else self.own.slice

    def hand_down(self, tape: Tape) -> None:
        """Leaves gradients of borrowed keys and values to a layer below, when all of the layer is differentiated."""
        if self.lending is not None:
            self.lending.hand_down(tape)

    def behind(self, tape: Tape) -> Section:
        """Backward of the layer's own input, behind that of the layer."""
        return self.own.behind(tape) if self.own is not None else Section(())

    def drop(self) -> None:
        """Lets go of what the model holds until its forward is over."""
        if self.own is not None:
            self.own.slice = None
        if self.lending is not None:
            self.lending.held.clear()
