"""The step of an optimizer that is described in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simcore.frameworks.common.steps.projection import Projection

__all__ = ["OwnStep", "Updated"]


@dataclass(frozen=True, slots=True)
class Updated:
    """One tensor as an optimizer's step sees it on this rank.

    `name`: in its layer. `shape`: of the rank's part; one dimension, if it is a part of a flat parameter. `size`,
    `grad_size`: bytes of an element of the parameter and of its gradient. `is_norm`: it is a norm's, by any name.
    `projection`: of its gradient to a low rank, if there is one.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    grad_size: int
    is_norm: bool = False
    projection: Projection | None = None


@dataclass(frozen=True, slots=True)
class OwnStep:
    """Needs of one optimizer's step beyond its states.

    `held`: returns the most bytes that it holds at a time while it updates tensors, given in the order of the model;
    what stays allocated from one tensor to the next counts. `moved`: returns the bytes that the update of a tensor
    reads and writes.
    """

    held: Callable[[Sequence[Updated]], int]
    moved: Callable[[Updated], int]
