"""A sweep: one document becomes many, each with some keys set.

    sweep: {mesh.ep: [1, 2, 4], mesh.tp: [1, 2]}                 every combination, the last key fastest
    sweep: [{mesh.ep: 4, mesh.tp: 2}, {mesh.ep: [8, 16]}]        keys that move together; a list inside is a product

The document is parsed once; a member copies only the mappings that it changes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath

__all__ = ["MAX_MEMBERS", "Member", "members", "split_key"]

MAX_MEMBERS: Final = 100_000
"""Scenarios that one file may ask for."""
MAX_CHANGES: Final = 1_000_000
"""Keys that a sweep may set, counted in every scenario."""

_MAX_NAME: Final = 200
_NO_LIST: Final = " a list, got "


@dataclass(frozen=True, slots=True)
class Member:
    """One scenario of a sweep, as a document with its keys set; `problems` if they could not be set.

    `swept`: its swept keys, each with all values of the sweep.
    """

    document: Document
    problems: tuple[Problem, ...] = ()
    swept: tuple[tuple[str, Sequence[Any]], ...] = ()

    def hinted(self, problem: Problem) -> Problem:
        """Problem of a swept key that takes a list, with how a sweep writes one: the same for all items of the list."""
        before, got, _ = problem.message.partition(_NO_LIST)
        name, expected, _ = before.partition(": expected")
        values = next((values for key, values in self.swept if key == name), None) if got and expected else None
        if values is not None:
            whole = f"[[{', '.join(map(_spelled, values))}]]"
            return replace(problem, message=f"{before} a list, and a sweep takes the items of its list one by one; "
                                            f"write {whole} for one value that is a list")
        return problem


def split_key(key: str) -> KeyPath:
    """Path of keys for a dotted key: `mesh.ep` gives ("mesh", "ep").

    What follows `framework_options.` is one part, because names of options may contain dots.
    """
    block, point, option = key.partition(".")
    return (block, option) if point and block == "framework_options" else tuple(key.split("."))


@dataclass(frozen=True, slots=True)
class _Key:
    """A swept key, its values, and its place in the file."""

    key: str
    values: Sequence[Any]
    place: str

    @property
    def key_path(self) -> KeyPath:
        return split_key(self.key)


def members(document: Document) -> list[Member]:
    """Documents of all scenarios of the file's `sweep`, in its order; without a sweep the document alone.

    Each is named by its values, such as `base[mesh.ep=4]`. InputError for a wrong sweep, or for too many scenarios.
    """
    sweep, plain = document.data.get("sweep"), document.without("sweep")
    if sweep is None:
        return [Member(plain)]
    groups = _groups(document, sweep)
    problems = [problem for group in groups for problem in _unfit(document, group)]
    if problems:
        raise InputError(problems)
    counts = [math.prod(len(key.values) for key in group) for group in groups]
    changes = sum(len(group) * count for group, count in zip(groups, counts, strict=True))
    for what, limit, asked in (("scenarios", MAX_MEMBERS, sum(counts)), ("values to set", MAX_CHANGES, changes)):
        if asked > limit:
            where = document.where(("sweep",))
            raise InputError(Problem(where, f"sweep: expected at most {limit:,} {what}, got {asked:,}"))
    combinations = (zip(group, values, strict=True) for group in groups for values in _product(group))
    return [_member(plain, list(chosen), index) for index, chosen in enumerate(combinations)]


def _product(group: list[_Key]) -> Iterator[tuple[Any, ...]]:
    return itertools.product(*(key.values for key in group))


def _groups(document: Document, sweep: object) -> list[list[_Key]]:
    """Groups of keys whose values are multiplied; the groups follow one another."""
    if isinstance(sweep, dict) and sweep:
        return [[_Key(key, value, document.where(("sweep", key))) for key, value in sweep.items()]]
    if isinstance(sweep, list) and sweep and all(isinstance(entry, dict) and entry for entry in sweep):
        return [
            [
                _Key(key, value if isinstance(value, list) else [value], document.where(("sweep", index, key)))
                for key, value in entry.items()
            ]
            for index, entry in enumerate(sweep)
        ]
    message = "sweep: expected a mapping of keys to lists of values, or a list of mappings, none of them empty"
    raise InputError(Problem(document.where(("sweep",)), message))


def _unfit(document: Document, group: list[_Key]) -> Iterator[Problem]:
    for key in group:
        if not isinstance(key.values, list) or not key.values:
            yield Problem(key.place, f"sweep: expected a list of values for {key.key!r}, got {key.values!r}")
        if key.key in ("name", "sweep") or not all(key.key_path):
            yield Problem(key.place, f"sweep: expected a key such as mesh.ep, got {key.key!r}")
        for put_in, place in document.places.items():
            if _lost(document.data, put_in, key.key_path):
                message = (f"sweep: {key.key!r} is also set by {place}: give it in one place "
                           "(--set sweep=null drops this)")
                yield Problem(key.place, message)
    yield from _overlapping(group)


def _overlapping(group: list[_Key]) -> Iterator[Problem]:
    """Problems of keys that set a part of another key's value."""
    by_path = {key.key_path: key for key in reversed(group)}
    for key in group:
        for length in range(1, len(key.key_path) + 1):
            other = by_path.get(key.key_path[:length], key)
            if other is not key:
                yield Problem(key.place, f"sweep: {key.key!r} and {other.key!r} set the same key")


def _begins(prefix: KeyPath, key_path: KeyPath) -> bool:
    return key_path[: len(prefix)] == prefix


def _lost(data: dict[str, Any], put_in: KeyPath, swept: KeyPath) -> bool:
    """True if sweeping `swept` would overwrite the value that was set at `put_in`."""
    if not _begins(put_in, swept):
        return _begins(swept, put_in)
    inner: Any = data
    for key in swept:
        if not isinstance(inner, dict) or key not in inner:
            return False
        inner = inner[key]
    return True


def _member(plain: Document, chosen: list[tuple[_Key, Any]], index: int) -> Member:
    document = plain
    problems: list[Problem] = []
    for key, value in chosen:
        try:
            document = document.with_value(key.key_path, value, key.place)
        except InputError as error:
            problems += error.problems
    if isinstance(base := plain.data.get("name"), str):
        document = document.with_value(("name",), _name(base, chosen, index), chosen[0][0].place)
    return Member(document, tuple(problems), tuple((key.key, key.values) for key, _ in chosen))


def _name(base: str, chosen: list[tuple[_Key, Any]], index: int) -> str:
    """Name such as `base[mesh.ep=4,mesh.tp=2]`; a name that would be too long is cut and numbered."""
    inside = ",".join(f"{key.key}={_spelled(value)}" for key, value in chosen)
    name = f"{base}[{inside}]"
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 12]}...#{index}]"


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
