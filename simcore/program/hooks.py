"""What lowering asks of a framework at every border of the walk; `flows/*.py` answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simcore.pipeline.schedule import Action
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.tape import Param

__all__ = ["HooksFactory", "MemoryHooks"]


class MemoryHooks(Protocol):
    """What a framework does at the borders. Layers are numbers of the graph."""

    def rest(self) -> None:
        """Post everything that lives across steps."""

    def begin_microbatch(self, action: Action) -> None:
        """A forward or backward pass begins."""

    def forward_begin(self, layer: int) -> None:
        """Before the layer's forward."""

    def forward_end(self, layer: int) -> None:
        """After it."""

    def backward_begin(self, layer: int) -> None:
        """Before the layer's backward."""

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """After it; `grads` exist now."""

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """A border of an experts module that is a unit of its own, or the layer's first gradient of a parameter."""

    def end_pass(self, action: Action) -> None:
        """The pass over the stage is done."""

    def optimize(self) -> None:
        """The optimizer's step."""


class HooksFactory(Protocol):
    """Makes the framework's flow for one program."""

    def __call__(self, plan: Plan, tables: Tables, builder: Builder) -> MemoryHooks:
        """A fresh flow."""

    def __hash__(self) -> int:
        """Outlines are kept by it."""
