"""Extents: numbers of elements of an optimizer state that has another shape than its parameter.

An `Extent` is called with a tensor's name in its layer and the shape of the rank's part of it, of one copy, and returns
the elements of the state for it; 0: the optimizer keeps no such state of this tensor. It must be hashable: a function,
or a frozen dataclass with `__call__` if it depends on settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["EXTENTS", "Extent"]

Extent = Callable[[str, tuple[int, ...]], int]


def _rows(_: str, shape: tuple[int, ...]) -> int:
    """Rows of a matrix: all dimensions but the last; 0 for vectors."""
    return math.prod(shape[:-1]) if len(shape) > 1 else 0


def _columns(_: str, shape: tuple[int, ...]) -> int:
    """Columns of a matrix, of each matrix in a stack: all dimensions but the last but one."""
    return math.prod((*shape[:-2], *shape[-1:])) if len(shape) > 1 else 0


def _of_vectors(_: str, shape: tuple[int, ...]) -> int:
    """Elements of a tensor with fewer than two dimensions; 0 for others."""
    return math.prod(shape) if len(shape) < 2 else 0


def _one(_: str, shape: tuple[int, ...]) -> int:
    """Single number of each tensor that is not empty."""
    return min(1, math.prod(shape))


EXTENTS: Final[Mapping[str, Extent]] = MappingProxyType({"rows": _rows, "columns": _columns, "vectors": _of_vectors,
                                                         "one": _one})
"""Extent by its word in a row of `inputs/optimizers.py`."""
