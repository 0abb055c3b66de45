"""The cache of long results: arrays of operations that similar scenarios share, least recently used out first.

All functions decorated by `held` share one budget of bytes, so that a search over thousands of layouts keeps as many
as fit, whether their steps are short or long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, update_wrapper
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

__all__ = ["Held", "Shelf", "held", "settle"]

T = TypeVar("T")
P = ParamSpec("P")

BYTES: Final = 320 * 2**20
"""Budget of one process: about 250 layouts of a 30B model on 16 GPUs, about 80 with their timelines and hot ranks."""
_OBJECT: Final = 64
"""Bytes of a small Python object."""


class _Key(tuple[Hashable, ...]):
    """Function and arguments, with a hash that is computed once: those of workloads and plans have many fields."""

    hashed: int

    def __new__(cls, *parts: Hashable) -> _Key:
        key = super().__new__(cls, parts)
        key.hashed = tuple.__hash__(key)
        return key

    def __hash__(self) -> int:
        return self.hashed


class _Results:
    """Results by function and arguments, from the least to the most recently used, and their estimated bytes.

    `found`: with the key under which the result was first kept, so that the other two are looked up by the same object.
    `touched`: used since `settle`. An array that a result computes on demand is measured at the next `settle`.
    """

    def __init__(self) -> None:
        self.found: dict[_Key, tuple[Any, int, _Key]] = {}
        self.sizes: dict[_Key, int] = {}
        self.touched: dict[_Key, None] = {}
        self.num_bytes = 0

    def drop(self, key: _Key) -> None:
        """Removes one result."""
        del self.found[key]
        self.touched.pop(key, None)
        self.num_bytes -= self.sizes.pop(key, 0)


_ALL: Final = _Results()


class Held(Generic[P, T]):
    """Function whose results are in the shared cache. `element_bytes`: of one element of a tuple in its results."""

    def __init__(self, function: Callable[P, T], element_bytes: int) -> None:
        self.function, self.element_bytes = function, element_bytes
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Result for these arguments, which must be hashable."""
        key = _Key(self, args, *kwargs.items())
        found = _ALL.found.pop(key, None)
        if found is None:
            found = self.function(*args, **kwargs), self.element_bytes, key
        _ALL.found[found[2]] = found
        _ALL.touched[found[2]] = None
        result: T = found[0]
        return result

    def __len__(self) -> int:
        """Number of its results in the cache."""
        return sum(key[0] is self for key in _ALL.found)

    def cache_clear(self) -> None:
        """Removes its results."""
        for key in [key for key in _ALL.found if key[0] is self]:
            _ALL.drop(key)


class Shelf(Generic[T]):
    """Results in the shared cache under keys of the caller, which need not hold what a result is made of."""

    def get(self, key: Hashable) -> T | None:
        """Result under `key`, None where there is none."""
        found = _ALL.found.pop(_Key(self, key), None)
        if found is None:
            return None
        self._place(found)
        result: T = found[0]
        return result

    def put(self, key: Hashable, result: T) -> None:
        """Keeps a result under `key`, in place of an earlier one."""
        full = _Key(self, key)
        _, _, first = _ALL.found.pop(full, (None, 0, full))
        self._place((result, _OBJECT, first))

    def clear(self) -> None:
        """Removes its results."""
        for key in [key for key in _ALL.found if key[0] is self]:
            _ALL.drop(key)

    @staticmethod
    def _place(found: tuple[Any, int, _Key]) -> None:
        _ALL.found[found[2]] = found
        _ALL.touched[found[2]] = None


def held(element_bytes: int = _OBJECT) -> Callable[[Callable[P, T]], Held[P, T]]:
    """Decorator that keeps a function's results in the shared cache, see `Held`."""
    return lambda function: Held(function, element_bytes)


def settle() -> None:
    """Measures the results used since the last call, and removes the least recently used above `BYTES`.

    To be called at the end of a step, so that results of the step under way are never removed.
    """
    touched, _ALL.touched = _ALL.touched, {}
    for key in touched:
        if key in _ALL.found:
            size = _num_bytes(*_ALL.found[key][:2])
            _ALL.num_bytes += size - _ALL.sizes.get(key, 0)
            _ALL.sizes[key] = size
    while _ALL.num_bytes > BYTES:
        _ALL.drop(next(iter(_ALL.found)))


def _num_bytes(value: object, element_bytes: int) -> int:
    """Estimated bytes of a result: of its arrays, or those of its fields, and of tuples by their lengths."""
    if isinstance(value, tuple) and len(value) < 4:
        return sum(_num_bytes(one, element_bytes) for one in value)
    fields = getattr(value, "__dict__", None)
    return _OBJECT + sum(map(partial(_flat_bytes, element_bytes), fields.values() if fields else (value,)))


def _flat_bytes(element_bytes: int, value: object) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return element_bytes * len(value) if isinstance(value, tuple | dict) else _OBJECT
