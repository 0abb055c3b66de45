"""Finds an implementation by its name."""

from __future__ import annotations

import importlib
from functools import lru_cache
from pkgutil import iter_modules
from typing import Final

from simcore import operators
from simcore.operators.implementation import Implementation

__all__ = ["IMPLEMENTATIONS", "implementation_of"]

IMPLEMENTATIONS: Final = tuple(sorted(one.name for one in iter_modules(operators.__path__)
                                      if one.ispkg and one.name != "shared"))
"""Names that a scenario may give its implementation: the folders, whose module is loaded when it is asked for."""


@lru_cache
def implementation_of(name: str) -> Implementation:
    """Implementation with that name, one of `IMPLEMENTATIONS`.

    Raises ModuleNotFoundError for another name.
    """
    found: Implementation = importlib.import_module(f"simcore.operators.{name}.implementation").IMPLEMENTATION
    return found
