"""The interface between lowering and a framework: calls at every border of the walk, implemented by its `hooks.py`."""

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
    """A framework's work at the borders of layers and passes. Layers are indices of the graph."""

    def post_persistent(self) -> None:
        """Posts all bytes that live across steps."""

    def begin_microbatch(self, action: Action) -> None:
        """Runs before a forward or backward pass."""

    def forward_begin(self, layer: int) -> None:
        """Runs before the layer's forward."""

    def forward_end(self, layer: int) -> None:
        """Runs after the layer's forward."""

    def backward_begin(self, layer: int) -> None:
        """Runs before the layer's backward."""

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Runs after the layer's backward; `grads`: the (parameter, slot, bytes) that exist now."""

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Runs at a border of an experts unit, or before the layer's first gradient of a parameter (`mark`)."""

    def end_pass(self, action: Action) -> None:
        """Runs after the pass over the stage."""

    def optimize(self) -> None:
        """Posts the optimizer's step."""


class HooksFactory(Protocol):
    """Makes the framework's hooks for one program."""

    def __call__(self, plan: Plan, tables: Tables, builder: Builder) -> MemoryHooks:
        """New hooks that write to `builder`."""

    def __hash__(self) -> int:
        """Hash, because step templates are cached by the factory."""
