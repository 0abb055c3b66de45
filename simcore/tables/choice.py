"""Choice of results to show: their order, how many, which verdicts, and columns by name (`--sort --top --fits ...`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError, Problem
from simcore.results.frame import Field
from simcore.results.report import Report
from simcore.results.verdict import SEVERITY
from simcore.tables.tabulate import ROW_FIELDS

__all__ = ["BEST", "Choice", "Key", "Order", "choice", "column_named"]

Key = tuple[int, int, float | str]
"""Sorting key of a result: severity of its verdict where that comes first, kind of its value, value."""

_FIELDS: Final = {field.column.name: field for field in ROW_FIELDS}


@dataclass(frozen=True, slots=True)
class Order:
    """Order of results by a column; results without a value come last, equal ones in their own order."""

    field: Field[Report]
    descending: bool = False

    def key(self, report: Report) -> tuple[int, float | str]:
        """Kind of a report's value (0 number, 1 text, 2 none), and the value to sort by."""
        value = self.field.value(report)
        if value is None:
            return 2, 0.0
        if isinstance(value, str):
            return 1, value
        return 0, -value if self.descending else value

    @property
    def words(self) -> str:
        """The column's name, with a minus sign where it descends."""
        return f"{'-' if self.descending else ''}{self.field.column.name}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Results that are shown.

    `order`: None: their own; `top`: at most so many, None: all; `verdicts`: of these alone, empty: of any; `columns`:
    of the table, empty: the usual ones; `fits_first`: results that fit come before others, whatever the order.
    """

    order: Order | None = None
    top: int | None = None
    verdicts: frozenset[str] = frozenset()
    columns: tuple[Field[Report], ...] = ()
    fits_first: bool = False

    @property
    def limits(self) -> bool:
        """True if it may leave results out."""
        return self.top is not None or bool(self.verdicts)

    def key(self, report: Report) -> Key | None:
        """Sorting key of a report; None if it is not shown."""
        verdict = report.job_verdict
        if self.verdicts and verdict not in self.verdicts:
            return None
        severity = 0 if not self.fits_first else len(SEVERITY) if verdict is None else SEVERITY[verdict]
        return (severity, 0, 0.0) if self.order is None else (severity, *self.order.key(report))

    def chosen(self, keys: Sequence[tuple[Key, int]]) -> list[int]:
        """Indices of the results to show, in order, from pairs (key, index) of all that may be."""
        pairs = sorted(keys, key=lambda pair: pair[0])
        if self.order is not None and self.order.descending:
            pairs.sort(key=lambda pair: pair[0][2] if pair[0][1] == 1 else "", reverse=True)  # texts: the last first
            pairs.sort(key=lambda pair: pair[0][:2])
        return [index for _, index in pairs[:self.top]]


def choice(sort: str = "", top: int | None = None, columns: str = "", verdicts: Iterable[str] = ()) -> Choice:
    """Choice from the texts of options: `sort` is a column, `-` before it for the largest first; `columns` has commas.

    InputError for a name that is no column.
    """
    names = [name.strip() for name in columns.split(",") if name.strip()]
    order = None
    if sort:
        order = Order(column_named(sort.removeprefix("-"), f"--sort {sort}"[:120]), sort.startswith("-"))
    return Choice(order, top, frozenset(verdicts),
                  tuple(column_named(name, f"--columns {name}"[:120]) for name in names))


def column_named(name: str, place: str) -> Field[Report]:
    """Column of results by its name, or by the end of it: `seq_len` is `training.seq_len`, others must be the only one.

    InputError, at `place`, for a name that is neither.
    """
    for full in (name, f"training.{name}"):
        if full in _FIELDS:
            return _FIELDS[full]
    ends = [full for full in _FIELDS if full.rpartition(".")[2] == name]
    if len(ends) == 1:
        return _FIELDS[ends[0]]
    near = ends or difflib.get_close_matches(name, _FIELDS, n=3, cutoff=0.5)
    more = f"; did you mean {', '.join(near)}?" if near else ""
    raise InputError(Problem(place, f"expected a column of docs/columns.md, got {name[:60]!r}{more}"))


BEST: Final = Choice(Order(_FIELDS["tokens_per_s_per_gpu"], descending=True), 10, fits_first=True)
"""Choice for many results that are on the disk, where a user makes none."""
