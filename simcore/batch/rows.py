"""Rows of the results in a folder of `run -o`, collected as results come and written as its data set."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simcore.errors import InputError, Problem
from simcore.results.report import Report
from simcore.tables.data_set import MISSING, DataSet, expect_ours
from simcore.tables.frame_file import has_arrow
from simcore.tables.tabulate import ROW_FIELDS

__all__ = ["Rows", "row_of"]

_COLUMNS: Final = tuple(field.column for field in ROW_FIELDS)


def row_of(report: Report) -> tuple[str | int | float | bool | None, ...]:
    """Row of a report: the values of `tabulate.ROW_FIELDS`."""
    return tuple(field.value(report) for field in ROW_FIELDS)


class Rows:
    """Rows under way. `problems`: why they cannot be written, which costs no result; `note`: why none are wanted."""

    def __init__(self, folder: Path, hidden: Path) -> None:
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
            self._data = DataSet(hidden, "scenarios", _COLUMNS)
        except InputError as error:
            self._fail(error)

    def add(self, number: int, report: Report) -> None:
        """Takes the row of result `number` of the folder, in any order."""
        if self._data is not None:
            try:
                self._data.add(number, row_of(report))
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
