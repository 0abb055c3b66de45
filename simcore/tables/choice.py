"""Choice of results to show: their order, how many, which verdicts, and columns by name (`--sort --top --fits ...`)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from simcore.errors import InputError, Problem
from simcore.results.frame import Field
from simcore.results.report import Report
from simcore.results.verdict import SEVERITY, Verdict
from simcore.tables.tabulate import ROW_FIELDS

__all__ = ["BEST", "REPORTS", "Choice", "Choosable", "Key", "Order"]

Key = tuple[int, int, float | str]
"""Sorting key of a result: severity of its verdict where that comes first, kind of its value, value."""
T = TypeVar("T")


@dataclass(frozen=True)
class Order(Generic[T]):
    """Order of results by a column; results without a value come last, equal ones in their own order."""

    field: Field[T]
    descending: bool = False

    def key(self, result: T) -> tuple[int, float | str]:
        """Kind of a result's value (0 number, 1 text, 2 none), and the value to sort by."""
        value = self.field.value(result)
        if value is None:
            return 2, 0.0
        if isinstance(value, str):
            return 1, value
        return 0, -value if self.descending else value

    @property
    def words(self) -> str:
        """The column's name, with a minus sign where it descends."""
        return f"{'-' if self.descending else ''}{self.field.column.name}"


@dataclass(frozen=True)
class Choice(Generic[T]):
    """Results that are shown, of one kind.

    `verdict`: of a result; `order`: None: their own; `top`: at most so many, None: all; `verdicts`: of these alone,
    empty: of any; `columns`: of the table, empty: the usual ones; `fits_first`: results that fit come before others,
    whatever the order.
    """

    verdict: Callable[[T], Verdict | None]
    order: Order[T] | None = None
    top: int | None = None
    verdicts: frozenset[str] = frozenset()
    columns: tuple[Field[T], ...] = ()
    fits_first: bool = False

    @property
    def limits(self) -> bool:
        """True if it may leave results out."""
        return self.top is not None or bool(self.verdicts)

    def key(self, result: T) -> Key | None:
        """Sorting key of a result; None if it is not shown."""
        verdict = self.verdict(result)
        if self.verdicts and verdict not in self.verdicts:
            return None
        severity = 0 if not self.fits_first else len(SEVERITY) if verdict is None else SEVERITY[verdict]
        return (severity, 0, 0.0) if self.order is None else (severity, *self.order.key(result))

    def chosen(self, keys: Sequence[tuple[Key, int]]) -> list[int]:
        """Indices of the results to show, in order, from pairs (key, index) of all that may be."""
        pairs = sorted(keys, key=lambda pair: pair[0])
        if self.order is not None and self.order.descending:
            pairs.sort(key=lambda pair: pair[0][2] if pair[0][1] == 1 else "", reverse=True)  # texts: the last first
            pairs.sort(key=lambda pair: pair[0][:2])
        return [index for _, index in pairs[:self.top]]


@dataclass(frozen=True)
class Choosable(Generic[T]):
    """Results of one kind, of which some may be chosen.

    `fields`: their columns by name; `verdict`: that of a result, None where it has none; `page`: where the columns are
    listed.
    """

    fields: Mapping[str, Field[T]]
    verdict: Callable[[T], Verdict | None]
    page: str

    def choice(self, sort: str = "", top: int | None = None, columns: str = "", verdicts: Iterable[str] = (),
               ) -> Choice[T]:
        """Choice from texts of options: `sort` is a column, `-` before it for the largest first; `columns` has commas.

        InputError for a name that is no column.
        """
        names = [name.strip() for name in columns.split(",") if name.strip()]
        order = None
        if sort:
            order = Order(self.column(sort.removeprefix("-"), f"--sort {sort}"[:120]), sort.startswith("-"))
        return Choice(self.verdict, order, top, frozenset(verdicts),
                      tuple(self.column(name, f"--columns {name}"[:120]) for name in names))

    def column(self, name: str, place: str) -> Field[T]:
        """Column by its name, or by the end of it: `seq_len` is `training.seq_len`, others must be the only one.

        InputError, at `place`, for a name that is neither.
        """
        for full in (name, f"training.{name}"):
            if full in self.fields:
                return self.fields[full]
        ends = [full for full in self.fields if full.rpartition(".")[2] == name]
        if len(ends) == 1:
            return self.fields[ends[0]]
        near = ends or difflib.get_close_matches(name, self.fields, n=3, cutoff=0.5)
        more = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(Problem(place, f"expected a column of {self.page}, got {name[:60]!r}{more}"))


REPORTS: Final[Choosable[Report]] = Choosable(
    {field.column.name: field for field in ROW_FIELDS}, lambda report: report.job_verdict, "docs/columns.md")
"""Results of scenarios."""
BEST: Final[Choice[Report]] = Choice(
    REPORTS.verdict, Order(REPORTS.fields["tokens_per_s_per_gpu"], descending=True), 10, fits_first=True)
"""Choice for many results that are on the disk, where a user makes none."""
