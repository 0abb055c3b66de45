"""Rules of Megatron-Core 0.16.1, cited where the version that is simulated has them.

Rules name the release's file and line; main has most of them elsewhere. `core_lines.json` has which lines are equal
(`tests/truth/list_core_lines.py`); a line that main does not have is left out, and a file that it does not have, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Final

__all__ = ["cited"]

_CORE: Final = re.compile(r"\b[Cc]ore 0\.16\.1")
_PLACE: Final = re.compile(r"(?P<path>[\w/]+\.py)(?P<lines>(?::\d+(?:, :\d+)*)?)")


def cited(rule: str, version: str) -> str:
    """A rule with the places of a version of Megatron; as it is for a release, and for rules of others.

    `version`: the scenario's `framework_version`, such as `main 2026-08-22`.
    """
    if not version.startswith("main") or not _CORE.search(rule):
        return rule
    return _PLACE.sub(_moved, _CORE.sub(f"Megatron-LM {version} core", rule))


def _moved(found: re.Match[str]) -> str:
    path, lines = _path(found["path"]), re.findall(r"\d+", found["lines"])
    if path is None:
        return found["path"]
    there = [line for one in lines if (line := _line(path, int(one))) is not None]
    return f"{path}{''.join(f':{line}' if not number else f', :{line}' for number, line in enumerate(there))}"


def _path(name: str) -> str | None:
    """Path within core, of a path or the end of one; None for a file that is not listed, or not the only one."""
    fitting = [path for path in _table() if path == name or path.endswith(f"/{name}")]
    return fitting[0] if len(fitting) == 1 else None


def _line(path: str, line: int) -> int | None:
    return next((line + distance for first, size, distance in _table()[path] if first <= line < first + size), None)


@lru_cache
def _table() -> Mapping[str, Sequence[tuple[int, int, int]]]:
    text = resources.files("simcore.frameworks").joinpath("core_lines.json").read_text(encoding="utf-8")
    table: Mapping[str, Sequence[tuple[int, int, int]]] = json.loads(text)
    return table
