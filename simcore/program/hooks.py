"""The interface between lowering and a framework: calls at every border of the walk, implemented by its `hooks.py`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from simcore.pipeline.schedule import Action
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.tape import Param

__all__ = ["HookState", "HooksFactory", "MemoryHooks", "PassHooks", "SizedHooks", "Sizes", "UnrepeatedHooks"]

Read = TypeVar("Read", bound=Hashable)


@dataclass(frozen=True, slots=True)
class HookState(Generic[Read]):
    """State of hooks between two passes over layers.

    `read`: everything that a pass reads or changes, so that in equal states equal passes append equal rows. `depths`:
    lengths of stacks of which a pass reads the top only (`read` has the tops), and adds or removes one element.
    """

    read: Read
    depths: tuple[int, ...] = ()


class PassHooks(Protocol):
    """Hooks around the layers of a forward pass."""

    def forward_begin(self, layer: int) -> None:
        """As `MemoryHooks.forward_begin`."""

    def forward_end(self, layer: int) -> None:
        """As `MemoryHooks.forward_end`."""


class MemoryHooks(Protocol):
    """Hooks (callbacks) of a framework for one program: what it allocates and sends between layers.

    `lower` calls each of them, and it appends operations to the `Builder`. `layer` is a number in the whole model (0:
    embedding; norm, head and loss count too). A pass is one forward or backward of a microbatch through one chunk.
    """

    def post_persistent(self) -> None:
        """Appends allocations of all tensors that live across steps (parameters, optimizer states, buffers)."""

    def begin_microbatch(self, action: Action) -> None:
        """Appends the operations of the framework before the forward or backward pass `action`."""

    def forward_begin(self, layer: int) -> None:
        """Appends the framework's operations before the forward of layer number `layer` (whole model, embedding 0).

        Such an operation is the gathering of its parameters.
        """

    def forward_end(self, layer: int) -> None:
        """Appends the framework's operations after the forward of layer number `layer` (whole model, embedding 0).

        Such an operation is the release of gathered parameters.
        """

    def backward_begin(self, layer: int) -> None:
        """Appends the framework's operations before the backward of layer number `layer` (whole model, embedding 0)."""

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Appends the framework's operations after a layer's backward, such as the reduction of gradients.

        `layer`: its number in the whole model, embedding 0. `grads`: (parameter, slot, bytes) of each gradient that
        exists now; slot: index of its name in `Tables.slots`.
        """

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Appends the operations of the framework where a data-parallel unit inside a layer begins or ends.

        Such a unit is a group of parameters, as of experts, that are gathered and reduced together. `layer`: number of
        the layer in the whole model, embedding 0. `mark`: number of the border (`INNER_FORWARD_BEGIN` to
        `INNER_BACKWARD_END` or those of adapters and of modules in fp32, of `recording.rows`), or `GRADIENTS_BEGIN`:
        before the layer's first gradient of a parameter. `grads`: as in `backward_end`, of that unit only. `replay`:
        True inside a checkpoint's replay.
        """

    def end_pass(self, action: Action) -> None:
        """Appends the operations of the framework after the forward or backward pass `action`."""

    def optimize(self) -> None:
        """Appends all operations of the optimizer's step."""

    def of_reference(self) -> PassHooks:
        """Hooks of the pass of a reference model: its own, at the pass's beginning, or these."""

    def state(self) -> HookState[Any] | None:
        """State before or after the layers of a pass; None if passes over layers are not to be compared."""

    def follow(self, before: HookState[Any], after: HookState[Any]) -> None:
        """Takes the state that the layers of a pass left: they led from `before`, equal to the state now, to `after`.

        Never called where `state` gives None.
        """


class UnrepeatedHooks:
    """Base of hooks whose passes over layers are never copied: their frameworks have no pipeline, so few passes."""

    def of_reference(self) -> Any:
        """These hooks, unless a reference model is gathered by its own."""
        return self

    def state(self) -> None:
        """None: passes are not compared."""

    def follow(self, before: HookState[Any], after: HookState[Any]) -> None:
        """Never called, see `MemoryHooks.follow`."""


class HooksFactory(Protocol):
    """Function of a framework that makes its `MemoryHooks` for one program."""

    def __call__(self, plan: Plan, tables: Tables, builder: Builder) -> MemoryHooks:
        """New hooks that append operations to `builder`, with names from `tables`, for the rank of `plan`."""

    def __hash__(self) -> int:
        """Hash of the factory, which is part of the key under which step templates are cached."""


class Sizes(Protocol):
    """All sizes of a plan from which hooks compute the amounts in their rows ([Note: plans of one form])."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The sizes, in a fixed order."""

    @property
    def form(self) -> Hashable:
        """Everything else of the plan on which rows depend, but for what `shared_steps.py` looks at itself."""

    def renumbered(self, numbers: Sequence[int]) -> Self:
        """Copy with other sizes, in the order of `numbers`."""


S = TypeVar("S", bound=Sizes)


@dataclass(frozen=True)
class SizedHooks(Generic[S]):
    """Factory of hooks that compute all amounts behind `post_persistent` from sizes, which plans of one form have.

    `sizes`: those of a plan. `post_persistent`: as that of the hooks. `make`: makes them with given sizes.
    """

    sizes: Callable[[Plan], S]
    post_persistent: Callable[[Plan, Tables, Builder], None]
    make: Callable[[Plan, Tables, Builder, S], MemoryHooks]

    def __call__(self, plan: Plan, tables: Tables, builder: Builder) -> MemoryHooks:
        """New hooks for the rank of `plan`, as `HooksFactory`."""
        return self.make(plan, tables, builder, self.sizes(plan))
