"""Scenario files of the best layouts of searches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from simcore.inputs.dump import yaml_text
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.found import FoundLayout, SearchResult
from simcore.units import format_bytes, format_seconds

__all__ = ["files_of", "layouts_of"]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LENGTH: Final = 100
"""Characters of a file name at most, without the number of the place and the ending."""
_PATHS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "model": ("config", (".json",)), "topology": ("file", (".yaml", ".yml"))}
"""Keys that may name a file: the inner key where the value is a mapping, and endings that a path has."""


def files_of(scenarios: Sequence[Scenario], results: Sequence[SearchResult], folder: Path) -> Iterator[tuple[str, str]]:
    """(file name, YAML text) of each layout of the rankings, numbered from 1; no two files have the same name.

    `folder`: where they will be; paths of models and machines, which the scenarios have beside themselves, are written
    as they are found from there. The block `search` is left out: the layout is found.
    """
    for stem, base, layout, one in _named(scenarios, results):
        data = layout.document.without("search").data
        yield f"{stem}.yaml", f"{_head(one)}{yaml_text(_moved(data, base, folder))}"


def layouts_of(scenarios: Sequence[Scenario], results: Sequence[SearchResult]) -> Iterator[tuple[str, Scenario]]:
    """(file name without an ending, scenario) of each layout of the rankings, named as by `files_of`."""
    yield from ((stem, layout) for stem, _, layout, _ in _named(scenarios, results))


def _named(scenarios: Sequence[Scenario], results: Sequence[SearchResult]
           ) -> Iterator[tuple[str, Scenario, Scenario, FoundLayout]]:
    """(file name without an ending, searched scenario, layout, row of the ranking)."""
    taken: set[str] = set()
    for base, result in zip(scenarios, results, strict=True):
        stem = _stem(base.name, taken)
        for place, one in enumerate(result.best, start=1):
            yield f"{stem}-{place}", base, changed(base, {**one.keys, "name": f"{base.name}-{place}"}), one


def _stem(name: str, taken: set[str]) -> str:
    """Name for files of a scenario that no other has, whatever case a file system keeps."""
    plain = _UNSAFE.sub("-", name).strip("-.")[:_LENGTH] or "layout"
    stem, count = plain, 1
    while stem.lower() in taken:
        count += 1
        stem = f"{plain}_{count}"
    taken.add(stem.lower())
    return stem


def _moved(data: dict[str, Any], base: Scenario, folder: Path) -> dict[str, Any]:
    """Keys of a scenario in another folder; relative paths lead to the same files from there."""
    moved = dict(data)
    for key, (inner, endings) in _PATHS.items():
        value = data.get(key)
        named = value.get(inner) if isinstance(value, dict) else value
        if not isinstance(named, str) or not named.endswith(endings) or Path(named).is_absolute():
            continue
        file = base.folder / named
        there = os.path.relpath(file.parent.resolve() / file.name, folder.resolve())  # links of folders change ".."
        moved[key] = {**value, inner: there} if isinstance(value, dict) else there
    return moved


def _head(one: FoundLayout) -> str:
    return (f"# {one.verdict}: peak {format_bytes(one.peak_bytes)}, step {format_seconds(one.step_s)}, "
            f"{one.tokens_per_s_per_gpu:,.0f} tokens/s per GPU on {one.num_gpus:,} GPUs\n")
