"""Looks into imported recipes, for tests of formats."""

from __future__ import annotations

from typing import Any

from simcore.recipes.imported import Imported


def value(found: Imported, key: str) -> Any:
    """Value of a scenario's key as it was imported; None if it was not written."""
    inner: Any = found.values
    for name in key.split("."):
        inner = inner.get(name) if isinstance(inner, dict) else None
    return inner


def messages(found: Imported) -> str:
    """Problems and questions, a line each."""
    return "\n".join(str(one) for one in (*found.wrong, *found.unknown, *found.refused, *found.questions))
