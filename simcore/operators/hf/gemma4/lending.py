"""Keys and values of one layer that later layers of its type use too (`Gemma4TextAttention`, shared_kv_states).

The model holds them until its forward is over. The gradients that layers make for them wait, from the highest one down:
each adds its own in a new tensor, and the layer that has made keys and values adds what is left to its own.
"""

from __future__ import annotations

from simcore.models.blocks import Attention
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Node, Tape, Tensor

__all__ = ["Lending"]

_WAITING = ("shared_keys.grad", "shared_values.grad")


class Lending:
    """Keys and values that pass between one layer, with attention `block`, and others.

    `held`: those that the layer lends, which the model holds until its forward is over.
    """

    def __init__(self, run: LayerWorkload, block: Attention) -> None:
        self.run, self.block = run, block
        self.held: list[Tensor] = []
        self._leaves: tuple[Node, ...] = ()

    def lend(self, tape: Tape, key: Tensor, value: Tensor) -> None:
        """Keeps both, [b, s, heads, d], for layers above, whose gradients of them are added to the layer's own."""
        for x, waiting in zip((key, value), self._from_above(tape), strict=True):
            if x.node is not None:
                x.node.grads[x.output] = waiting
        self.held += [key, value]

    def borrow(self, tape: Tape) -> tuple[Tensor, Tensor]:
        """Key and value, each [b, s, heads, d], of the layer that has made them."""
        key, value = (Tensor(None, self._shape, self.run.compute) for _ in range(2))
        if self.run.input_requires_grad:
            self._leaves = (Node(), Node())
            key.node, value.node = self._leaves
            for leaf, waiting in zip(self._leaves, self._from_above(tape) if self.block.lent else (), strict=False):
                leaf.grads[0] = waiting
        return key, value

    def hand_down(self, tape: Tape) -> None:
        """Leaves gradients of borrowed keys and values to the next layer below that uses them."""
        for leaf, name in zip(self._leaves, _WAITING, strict=False):
            grad = leaf.grads.pop(0)
            tape.rename(grad.storage, tape.slot(name, "backward_temp"))
            grad.disown()
        self._leaves = ()

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.run.batch, self.run.seq, self.block.num_kv_heads, self.block.head_dim)

    def _from_above(self, tape: Tape) -> tuple[Tensor, ...]:
        return tuple(tape.external(self._shape, self.run.compute, tape.slot(name, "backward_temp"), self.block.lent)
                     for name in _WAITING)
