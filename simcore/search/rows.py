"""Rows of a search: one for each candidate, with what became of it and every key that makes it.

A search does not hold its candidates, and neither do its rows: what became of each takes 22 bytes, and when the answer
is there the candidates are made again, in order, and written as a data set beside it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from simcore.batch.rows import Rows
from simcore.inputs.scenario import Mesh, Scenario
from simcore.inputs.sweep import split_key
from simcore.results.frame import Column, Field, Value, unit_of
from simcore.results.report import Report
from simcore.results.verdict import Verdict
from simcore.search.judge import Candidate, Judged, Refused, Timed
from simcore.tables.choice import Choosable
from simcore.tables.data_set import digest_of, is_data_of
from simcore.tables.fields import SCENARIO_FIELDS
from simcore.tables.key_fields import KEY_FIELDS, key_value

__all__ = ["CANDIDATES", "COLUMNS", "OWN", "CandidateRows", "Fates", "Row", "write_rows"]

Row = tuple[Value, ...]
"""Values of `COLUMNS`."""

_AXES: Final = tuple(Mesh.model_fields)
_ALIKE: Final = ("name", "workload", "model", "framework", "topology", "method", *_AXES)
"""Columns that a batch's rows have too, of the same meaning, from the scenario."""
_FATES: Final = ("", "refused", "at_rest", "oom", "unsure", "excluded", "fits")


def _column(name: str, dtype: Any, words: str) -> Column:
    return Column(name, dtype, unit_of(name), words)


OWN: Final[tuple[Column, ...]] = (
    _column("candidate", "int64", "its number in the space, from 0"),
    _column("outcome", "string", "refused (by a rule), at_rest (what rests is more than fits), oom, unsure, excluded "
            "(by a condition on results), slower (its bound is beyond the answer), ranked"),
    _column("status", "string", "ok, or illegal, wrong, not yet, bug where it was refused"),
    _column("verdict", "string", "fits, oom or unsure"),
    _column("problems", "string", "why it was refused"),
    _column("num_gpus", "int64", "GPUs that train"),
    _column("peak_bytes", "int64", "device memory of the fullest rank"),
    _column("headroom_bytes", "int64", "what the limit leaves; negative where it does not fit"),
    _column("step_s", "float64", "one steady step, of those that were timed"),
    _column("tokens_per_s_per_gpu", "float64", "tokens of the batch"),
    _column("mfu", "float64", "model FLOPs utilisation, 0 to 1"),
    _column("cost_per_million_tokens_usd", "float64", "on all GPUs"),
    _column("evidence", "string", "measured, recipe, class or none"))
"""Columns that are no keys."""
_SHARED: Final = tuple(field for field in SCENARIO_FIELDS if field.column.name in _ALIKE)
COLUMNS: Final[tuple[Column, ...]] = (
    *OWN, *(field.column for field in _SHARED), *(field.column for field in KEY_FIELDS))
"""Columns of a candidate's row."""


def _at(place: int) -> Callable[[Row], Value]:
    """Function for the value of a row at a place."""
    return itemgetter(place)


def _verdict(row: Row) -> Verdict | None:
    """Verdict of a row, None also for a candidate that a condition excludes."""
    outcome, verdict = row[1], row[3]
    return None if outcome == "excluded" else "fits" if verdict == "fits" else "unsure" if verdict == "unsure" else (
        "oom" if verdict == "oom" else None)


CANDIDATES: Final[Choosable[Row]] = Choosable(
    {column.name: Field(column, _at(place)) for place, column in enumerate(COLUMNS)}, _verdict, "docs/query.md")
"""Candidates of a search, of which some may be shown."""


class Fates:
    """Fate of each of `num` candidates, in 22 bytes each; messages of refusals are kept once."""

    def __init__(self, num: int) -> None:
        self._fate, self._why = array("b", bytes(num)), array("i", bytes(4 * num))
        self._peak, self._headroom = array("q", bytes(8 * num)), array("q", bytes(8 * num))
        self._verdict = array("b", bytes(num))
        self._messages: dict[tuple[str, str], int] = {("", ""): 0}

    def note(self, index: int, answer: Judged, fate: str = "") -> None:
        """Keeps the answer on one candidate. `fate`: excluded; omitted, what the answer says."""
        if isinstance(answer, Refused):
            self._fate[index] = _FATES.index("refused")
            self._why[index] = self._messages.setdefault((answer.status, answer.message), len(self._messages))
        elif answer is None:
            self._fate[index] = _FATES.index("at_rest")
        else:
            self._fate[index] = _FATES.index(fate or answer.verdict)
            self._verdict[index] = _FATES.index(answer.verdict)
            self._peak[index], self._headroom[index] = answer.peak_bytes, answer.headroom_bytes

    def messages(self) -> list[tuple[str, str]]:
        """(status, message) of refusals by number."""
        return list(self._messages)

    def row(self, index: int, messages: list[tuple[str, str]]) -> tuple[str, str, str | None, str | None, int | None,
                                                                        int | None]:
        """(outcome, status, verdict, message, peak, headroom) of a candidate."""
        fate = _FATES[self._fate[index]]
        if fate == "refused":
            status, message = messages[self._why[index]]
            return fate, status, None, message, None, None
        if fate == "at_rest":
            return fate, "ok", "oom", None, None, None
        return fate, "ok", _FATES[self._verdict[index]], None, self._peak[index], self._headroom[index]


class _Keys:
    """Values of the columns of keys for a candidate: those of the base scenario with some changed."""

    def __init__(self, base: Scenario) -> None:
        keys = base.normalised()
        report = Report(name=base.name, scenario=keys, status="ok")
        self._base: list[Value] = [field.value(report) for field in (*_SHARED, *KEY_FIELDS)]
        names = [field.column.name for field in _SHARED] + [field.column.name for field in KEY_FIELDS]
        dtypes = [field.column.dtype for field in (*_SHARED, *KEY_FIELDS)]
        self._place = {_key_of(name): (at, dtype) for at, (name, dtype) in enumerate(zip(names, dtypes, strict=True))}
        self._axes = [self._place[f"mesh.{axis}"][0] for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")]
        self._blocks = keys

    def row(self, candidate: Candidate) -> list[Value]:
        """Values of all columns of keys."""
        row, inner = self._base.copy(), dict[str, dict[str, Any]]()
        for key, value in candidate.items():
            found = self._place.get(key)
            if found is not None:
                row[found[0]] = key_value({"": value}, ("",), found[1])
                inner[key] = dict(value) if isinstance(value, Mapping) else {}
                continue
            root = next(each for each in _prefixes(key) if each in self._place)
            block = inner.setdefault(root, self._block(root))
            _put(block, [str(part) for part in split_key(key)[len(split_key(root)):]], value)
            row[self._place[root][0]] = key_value({"": block}, ("",), "string")
        return row

    def _block(self, name: str) -> dict[str, Any]:
        """Copy of the base scenario's block of that name."""
        inner: Any = self._blocks
        for part in name.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        return dict(inner) if isinstance(inner, Mapping) else {}

    def num_gpus(self, row: list[Value]) -> int:
        """Product of the degrees that make the ranks."""
        return prod(size if isinstance(size := row[at], int) else 1 for at in self._axes)


def _key_of(column: str) -> str:
    return f"mesh.{column}" if column in _AXES else "training.method" if column == "method" else column


def _prefixes(key: str) -> list[str]:
    """Keys of the blocks around a key, the nearest first, the key's root last."""
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _put(block: dict[str, Any], path: list[str], value: Any) -> None:
    """Sets a value in nested mappings, which are copied on the way."""
    for part in path[:-1]:
        inner = block.get(part)
        block[part] = dict(inner) if isinstance(inner, Mapping) else {}
        block = block[part]
    block[path[-1]] = value


class CandidateRows:
    """Rows of candidates in their order, made again by each iteration.

    `every`: their indices in the space, and keys; `times`: outcome and time of a candidate that fits, by its index.
    """

    def __init__(self, base: Scenario, every: Iterable[tuple[int, Candidate]], fates: Fates,
                 times: Callable[[int], tuple[str, Timed | None]]) -> None:
        self._base, self._every, self._fates, self._times = base, every, fates, times

    def __iter__(self) -> Iterator[Row]:
        keys, messages = _Keys(self._base), self._fates.messages()
        for index, candidate in self._every:
            outcome, status, verdict, message, peak, headroom = self._fates.row(index, messages)
            time = None
            if outcome in ("fits", "unsure"):
                outcome, time = self._times(index)
            values = keys.row(candidate)
            timed = (None,) * 5 if time is None else (
                time.step_s, time.tokens_per_s_per_gpu, time.mfu, time.usd_per_million_tokens, time.evidence)
            yield (index, outcome, status, verdict, message, keys.num_gpus(values), peak, headroom, *timed, *values)


def write_rows(folder: Path, journal: Path, made: CandidateRows) -> Rows | None:
    """Writes the rows of a search beside its `journal` or answer; None if they are there, else what became of them."""
    digest = digest_of(journal)
    if is_data_of(folder, digest):
        return None
    rows = Rows(folder, folder / ".rows", "candidates", COLUMNS)
    for number, row in enumerate(made) if rows.are_wanted else ():
        rows.add_row(number, row)
    rows.end(journal, digest)
    return rows
