"""Rows of a folder of results, collected as results come and written as its data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.errors import InputError, Problem
from simcore.results.frame import Column, Value
from simcore.results.report import Report
from simcore.tables.data_set import MISSING, DataSet, expect_ours
from simcore.tables.frame_file import has_arrow
from simcore.tables.tabulate import ROW_FIELDS

__all__ = ["Rows", "row_of"]

_COLUMNS: Final = tuple(field.column for field in ROW_FIELDS)


def row_of(report: Report) -> tuple[Value, ...]:
    """Row of a report: the values of `tabulate.ROW_FIELDS`."""
    return tuple(field.value(report) for field in ROW_FIELDS)


class Rows:
    """Rows under way. `problems`: why they cannot be written, which costs no result; `note`: why none are wanted."""

    def __init__(self, folder: Path, hidden: Path, kind: str = "scenarios", columns: Sequence[Column] = _COLUMNS
                 ) -> None:
        """Begins a data set for `folder` in the folder `hidden`, unless pyarrow is missing or there is no place."""
        self.problems: list[Problem] = []
        self.note: Problem | None = None
        self._folder = folder
        self._data: DataSet | None = None
        if not has_arrow():
            self.note = Problem(str(folder), MISSING)
            return
        try:
            expect_ours(folder)
        except InputError as error:
            self.note = error.problems[0]
            return
        try:
            self._data = DataSet(hidden, kind, columns)
        except InputError as error:
            self._fail(error)

    @property
    def are_wanted(self) -> bool:
        """True while rows are taken; otherwise none need be made."""
        return self._data is not None

    def add(self, number: int, report: Report) -> None:
        """Takes the row of result `number` of the folder, in any order."""
        if self._data is not None:
            self.add_row(number, row_of(report))

    def add_row(self, number: int, row: tuple[Value, ...]) -> None:
        """Takes a row by its number, in any order."""
        if self._data is not None:
            try:
                self._data.add(number, row)
            except InputError as error:
                self._fail(error)

    def end(self, journal: Path, digest: str) -> None:
        """Puts the rows in place beside the file of results, `journal`, that has this digest."""
        if self._data is not None:
            try:
                self._data.end(self._folder, journal.name, digest)
            except InputError as error:
                self._fail(error)
            self._data = None

    def drop(self) -> None:
        """Removes what is under way, where no file of results shows it."""
        if self._data is not None:
            self._data.drop()
            self._data = None

    def _fail(self, error: InputError) -> None:
        self.problems += error.problems
        self.drop()
