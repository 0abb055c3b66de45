"""Caches of results as long as a step, shared by similar scenarios and cleared before they fill the memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from simcore.inputs.bounds import ROWS

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

__all__ = ["held", "taken"]

T = TypeVar("T")


class _Held:
    """Functions that clear caches, and the number of rows of the steps that used them since they were empty."""

    def __init__(self) -> None:
        self.clear: list[Callable[[], None]] = []
        self.rows = 0


_ALL: Final = _Held()


def held(maxsize: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Decorator like `lru_cache(maxsize)`, for functions whose results are long arrays of operations.

    `taken` empties all caches made by it at once.
    """
    def decorated(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        cached = lru_cache(maxsize=maxsize)(function)
        _ALL.clear.append(cached.cache_clear)
        return cached

    return decorated


def taken(rows: int) -> None:
    """Counts the `rows` of a finished step.

    Empties the caches of `held` when their sum exceeds `bounds.ROWS`.
    """
    _ALL.rows += rows
    if _ALL.rows > ROWS:
        _ALL.rows = 0
        for clear in _ALL.clear:
            clear()
