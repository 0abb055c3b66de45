"""Finds an implementation by its name."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Final

from simcore.operators.implementation import Implementation

__all__ = ["IMPLEMENTATIONS", "implementation_of"]

IMPLEMENTATIONS: Final = ("automodel", "hf", "hub", "kempnerforge", "llmfoundry", "megatron", "torchtitan")
"""Names that a scenario may give its implementation, each of a folder, whose module is loaded when it is asked for."""


@lru_cache
def implementation_of(name: str) -> Implementation:
    """The record of a known implementation."""
    found: Implementation = importlib.import_module(f"simcore.operators.{name}.implementation").IMPLEMENTATION
    return found
