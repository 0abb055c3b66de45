"""A block of a layer as ZeRO's hooks on modules see it: the norm before it, its module, what is behind it."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.frameworks.deepspeed.module_units import Calls, Container, Linear

__all__ = ["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A block: the norm before it, its module (with what that has itself: sinks, Mamba's vectors), the norm behind it.

    `before` is empty where another block stands behind the same norm already, both are where there is no norm.
    `acts_last`: the activation is a module of which the last linear takes the output as it is. `has_input_grad`: the
    block's input needs a gradient. `joins`: the last unit takes what the others have made, and not the block's input.
    `asks`: the module behind has saved something, so a replay begins in it.
    """

    before: Calls
    block: Container
    behind: Calls
    acts_last: bool = False
    has_input_grad: bool = True
    joins: bool = True
    asks: bool = False

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        return [*self.before, *self.block.forward(), *self.behind]

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first; none where nothing in it is trained or needs it."""
        if self.has_input_grad:
            return [*self.behind, *reversed(self.block.backward()), *self.before]
        *first, last = self.block.units
        inside = [call for unit in first for call in unit.without_input_grad()]
        inside += last.backward() if self.joins and inside else last.without_input_grad()
        if not inside:
            return []
        return [*self.behind, self.block.opening(), *reversed(inside)]  # the norm before it is frozen, as all before it

    def opened(self) -> list[Container]:
        """The module and the containers in it, from the outside in, that hold the last linear."""
        found = [self.block]
        while found[-1].units and not found[-1].combines and isinstance(found[-1].units[-1], Container):
            found.append(found[-1].units[-1])
        return found

    def last(self) -> Linear | None:
        """The linear that runs last; None in a leaf, whose linears have no hooks, and where a product comes behind."""
        inner = self.opened()[-1]
        last = None if inner.combines or not inner.units else inner.units[-1]
        return last if isinstance(last, Linear) else None
