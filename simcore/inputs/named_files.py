"""Files that a scenario names by paths relative to its own folder, once it lies in another one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["named_from"]

_PATHS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "model": ("config", (".json",)), "topology": ("file", (".yaml", ".yml"))}
"""Keys that may name a file: the inner key where the value is a mapping, and endings that a path has."""


def named_from(data: Mapping[str, Any], before: Path, after: Path) -> dict[str, Any]:
    """Keys of a scenario in the folder `after`, whose relative paths lead to the same files as from `before`."""
    moved = dict(data)
    for key, (inner, endings) in _PATHS.items():
        value = data.get(key)
        named = value.get(inner) if isinstance(value, dict) else value
        if not isinstance(named, str) or not named.endswith(endings) or Path(named).is_absolute():
            continue
        file = before / named
        there = os.path.relpath(file.parent.resolve() / file.name, after.resolve())  # links of folders change ".."
        moved[key] = {**value, inner: there} if isinstance(value, dict) else there
    return moved
