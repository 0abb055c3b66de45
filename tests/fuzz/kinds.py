"""The kinds of cases, and how many of each in a hundred."""

from __future__ import annotations

from typing import Final

from fuzz import commands, files, layouts, searches, special
from fuzz.case import Case, Kind

__all__ = ["KINDS", "case_of", "cases_named"]

KINDS: Final = {kind.name: kind for kind in (
    Kind("layout", 29, layouts.draw, layouts.judge),
    Kind("shape", 2, special.shape, commands.judge),
    Kind("folder", 1, special.folder, commands.judge),
    Kind("zero", 1, special.zero, commands.judge),
    Kind("scenario", 14, files.scenario, commands.judge),
    Kind("extreme", 11, files.extreme, commands.judge),
    Kind("model", 12, files.model, commands.judge),
    Kind("topology", 6, files.topology, commands.judge),
    Kind("results", 5, files.results, commands.judge),
    Kind("measured", 3, files.measured, commands.judge),
    Kind("readings", 3, files.readings, commands.judge),
    Kind("settings", 4, files.settings, commands.judge),
    Kind("arguments", 3, files.arguments, commands.judge),
    Kind("search", 3, searches.draw, searches.judge),
    Kind("question", 3, searches.question, commands.judge),
)}
_ORDER: Final = [kind for kind in KINDS.values() for _ in range(kind.weight)]
_STRIDE: Final = 37
"""Neighbours are of different kinds, so that every stretch of cases has about its share of each."""


def case_of(seed: int, number: int) -> Case:
    """The `number`-th case of a seed."""
    return Case(seed, _ORDER[number * _STRIDE % len(_ORDER)], number)


def cases_named(seed: int, name: str) -> Case:
    """`layout-12`: that case of a seed; ValueError for a name that is none."""
    kind, _, number = name.rpartition("-")
    if kind not in KINDS or not number.isdigit():
        raise ValueError(f"expected KIND-NUMBER with a kind of {', '.join(KINDS)}, got {name!r}")
    return Case(seed, KINDS[kind], int(number))
