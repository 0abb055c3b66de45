"""Columns of the keys that make a scenario, of one type for every scenario, so that any two tables can be joined.

A column has the dotted name of a key, as `--set` takes it. A key that may be a word or a block, and a block whose keys
depend on the framework, is text: a word as it is, anything else as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from simcore.inputs.block import Block
from simcore.inputs.scenario import ModelFile, Scenario, TopologyFile
from simcore.results.frame import Column, Dtype, Field, Value, spelled, unit_of
from simcore.results.report import Report

__all__ = ["KEY_FIELDS", "key_value", "keys_of"]

_APART: Final = frozenset({"name", "workload", "model", "framework", "topology", "mesh", "search", "sweep",
                           "training.method"})
"""Keys that have a column of their own (`fields.SCENARIO_FIELDS`), or are in no result."""
_NUMBERS: Final[Mapping[frozenset[type], Dtype]] = {
    frozenset({bool}): "bool", frozenset({int}): "int64", frozenset({float}): "float64",
    frozenset({int, float}): "float64"}


def _leaves(block: type[Block], before: str = "") -> Iterator[tuple[str, Dtype]]:
    """(dotted key, type) of every key of a block and of those that are always blocks in it."""
    for name, field in block.model_fields.items():
        kinds = frozenset(_kinds(field.annotation)) - {type(None)}
        inner = next((kind for kind in kinds if issubclass(kind, Block)), None)
        if f"{before}{name}" in _APART:
            continue
        if inner is not None and len(kinds) == 1:
            yield from _leaves(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", _NUMBERS.get(kinds, "string")


def _kinds(annotation: Any) -> Iterator[type]:
    """Types that a value of an annotation may have."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for branch in get_args(annotation):
            yield from _kinds(branch)
    elif origin is Literal:
        yield from {type(value) for value in get_args(annotation)}
    else:
        yield origin or (annotation if isinstance(annotation, type) else object)


def _further(name: str, block: type[Block]) -> Iterator[tuple[str, Dtype]]:
    """Keys of a file's block after the first, which is the file and has a column of its own."""
    for inner, dtype in [*_leaves(block)][1:]:
        yield f"{name}.{inner}", dtype


_KEYS: Final[tuple[tuple[str, Dtype], ...]] = (
    *_further("model", ModelFile), *_further("topology", TopologyFile), *_leaves(Scenario))


def key_value(keys: Mapping[str, Any], path: tuple[str, ...], dtype: Dtype) -> Value:
    """Value of a column in the keys of a scenario; None for one that is not there, or of another type."""
    inner: Any = keys
    for part in path:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    if inner is None or inner in ({}, []):
        return None
    if dtype == "string":
        return spelled(inner)
    if dtype == "bool":
        return inner if isinstance(inner, bool) else None
    if isinstance(inner, bool) or not isinstance(inner, int | float):
        return None
    return float(inner) if dtype == "float64" else inner if isinstance(inner, int) else None


def _reader(name: str, dtype: Dtype) -> Callable[[Report], Value]:
    path = tuple(name.split("."))
    return lambda report: key_value(report.scenario, path, dtype)


KEY_FIELDS: Final[tuple[Field[Report], ...]] = tuple(
    Field(Column(name, dtype, unit_of(name), "a key of the scenario"), _reader(name, dtype)) for name, dtype in _KEYS)
"""Columns of all keys that have no other column, in the order of scenario files."""


def keys_of(names: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of these columns that are in `names`."""
    return tuple(name for name, _ in _KEYS if name in names)
