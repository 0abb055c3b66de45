"""Measured runs: readings from real GPUs, and the scenario that was run.

A file has one row a line, each a JSON object. A wrong row does not affect the others: its problem names file, line and
id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from simcore.errors import InputError, Problem
from simcore.inputs.block import Block, Name, OpenMap, Text, problems_of
from simcore.inputs.document import Document, read_text
from simcore.inputs.loading import Entry, entry_of
from simcore.inputs.paths import is_dir
from simcore.inputs.shipped import data_folder
from simcore.inputs.yaml_parser import dotted

__all__ = ["QUANTITIES", "Kind", "Measured", "Reading", "Row", "layout_of", "read_measured"]

MAX_BYTES: Final = 2**24
"""Size of one file."""

QUANTITIES: Final = ("allocated_peak", "allocated_peak_first", "allocated_end", "reserved_peak", "device_peak")
Quantity = Literal["allocated_peak", "allocated_peak_first", "allocated_end", "reserved_peak", "device_peak"]
Rank = Annotated[int, Field(ge=0)] | Literal["last", "max"]
Kind = Literal["tuned", "untuned", "rl"]
"""Kind of a run: tuned for speed (a recipe or table of performance), an example or a test, or a step that generates.

The time of the last is shown and not judged: what hosts of engines take is not told (`simcore/vllm/passes.py`).
"""


class Reading(Block):
    """One measured number of bytes. `of`: quantity, such as the peak of allocated memory.

    `rank`: the rank it was read on, `last` of the world, or the `max` over all ranks. `allocated_peak_first` is the
    peak of the very first step, `allocated_end` what is allocated after a step, `device_peak` what the driver counts.
    """

    of: Quantity
    rank: Rank
    bytes: Annotated[int, Field(ge=1)]


class Row(Block):
    """One measured run: either its scenario, without a name, or the reason why none can be written.

    `as_published`: of a run without one, because its reading shows that something else ran than its configuration says,
    the scenario of the configuration. `group`: runs of one origin; `source`: where it was published. `readings`: of
    memory; `verdict`: whether it ran out of memory. `step_s`: seconds of a step, or of the part that `timed` names.
    `release`: of the software, if known; another release may be faster. `kept_out`: no constant may be fitted to
    it. Only a run without a scenario may lack all three.
    """

    id: Name
    group: Name
    source: Text
    scenario: OpenMap | None = None
    not_modelled: Text | None = None
    as_published: OpenMap | None = None
    readings: Annotated[tuple[Reading, ...], Field(strict=False)] = ()
    verdict: Literal["fits", "oom"] | None = None
    step_s: Annotated[float, Field(gt=0, strict=False)] | None = None
    timed: Literal["step", "forward_backward"] = "step"
    kind: Kind = "untuned"
    release: Text | None = None
    kept_out: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Row:
        if (self.scenario is None) == (self.not_modelled is None):
            raise ValueError("expected either scenario or not_modelled")
        if self.as_published is not None and self.scenario is not None:
            raise ValueError("expected as_published only without scenario")
        if self.scenario is not None and not self.read_memory and self.step_s is None:
            raise ValueError("expected readings, a verdict or step_s")
        return self

    @property
    def read_memory(self) -> bool:
        """Tells whether the row has memory readings, or says that the run did or did not fit."""
        return bool(self.readings) or self.verdict is not None


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured run with its scenario, ready to be simulated; `entry` is None if it has none.

    `published`: scenario of the configuration of a run that shows that something else ran, see `Row.as_published`.
    """

    row: Row
    entry: Entry | None
    published: Entry | None = None


def layout_of(entry: Entry) -> str:
    """Text (JSON) of all keys of the scenario of `entry` but its name: equal for scenarios that differ in name only."""
    assert entry.scenario is not None
    scenario = entry.scenario.normalised()
    return json.dumps({key: value for key, value in scenario.items() if key != "name"}, sort_keys=True)


def read_measured(paths: Iterable[str] = (), overrides: Sequence[str] = ()) -> tuple[list[Measured], list[Problem]]:
    """(measured runs of files, or of all `*.jsonl` in folders, in order; problems of wrong rows, which are left out).

    Without paths: the runs that come with rankscope. `overrides`: `KEY=VALUE` for each scenario. A repeated id is a
    problem. InputError for a path that cannot be read.
    """
    rows: list[Measured] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for file in _files(list(paths) or [str(data_folder("measured"))]):
        for line, text in enumerate(read_text(file, MAX_BYTES).splitlines(), 1):
            if text.strip():
                try:
                    measured = _measured(text, f"{file}:{line}", overrides, seen)
                except InputError as error:
                    problems += error.problems
                else:
                    rows.append(measured)
    return rows, problems


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        inside = _inside(path) if is_dir(path) else [path]
        if not inside:
            raise InputError(Problem(str(path), "the folder holds no measured rows (*.jsonl)"))
        yield from inside


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
    except OSError as error:
        raise InputError(Problem(str(folder), f"cannot be read: {error.strerror}")) from None


def _measured(text: str, where: str, overrides: Sequence[str], seen: set[str]) -> Measured:
    row = _row(text, where)
    if row.id in seen:
        raise InputError(Problem(where, f"row {row.id}: another row has this id already"))
    seen.add(row.id)
    entry, published = (None if asked is None else _entry(row, asked, where, overrides)
                        for asked in (row.scenario, row.as_published))
    return Measured(row, entry, published)


def _row(text: str, where: str) -> Row:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(where, f"expected a JSON object on one line: {error}")) from None
    if not isinstance(data, dict):
        raise InputError(Problem(where, f"expected a JSON object on one line, got {type(data).__name__}"))
    try:
        return Row.model_validate(data)
    except ValidationError as error:
        raise _about(data.get("id"), where, problems_of(error, Row, dotted)) from None


def _entry(row: Row, scenario: dict[str, Any], where: str, overrides: Sequence[str]) -> Entry:
    path, _, line = where.rpartition(":")
    document = Document(path, {"name": row.id, **scenario}, {(): int(line)})
    entry = entry_of(document, overrides)
    if entry.scenario is None:
        raise _about(row.id, where, entry.problems)
    return entry


def _about(row_id: object, where: str, problems: Sequence[Problem]) -> InputError:
    """All problems of one row, as one problem."""
    messages = "; ".join(problem.message for problem in problems)
    return InputError(Problem(where, f"row {row_id or 'without an id'}: {messages}"))
