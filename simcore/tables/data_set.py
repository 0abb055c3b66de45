"""Results as a data set: one small row a result, in Parquet files beside the file of results.

    data/part-00000.parquet    2,048 rows each, in the order of the results
    data/_about.json           version of this layout, and the digest of the file of results that the rows are of

The file of results is the journal, the data set is derived from it: rows are made while results come, and the folder is
put in place once the journal is. A reader compares the digest, so rows never pass for those of other results. Needs
pyarrow (extra `parquet`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import read_text
from simcore.inputs.paths import is_dir, is_file, write_whole, writing
from simcore.results.frame import Column, Value
from simcore.tables.frame_file import write_part

__all__ = ["DATA", "MISSING", "DataSet", "data_of", "digest_of", "expect_ours", "is_data_of"]

DATA: Final = "data"
"""Name of the folder of a data set, beside its file of results."""
MISSING: Final = "rows for `rankscope query` need pyarrow: pip install 'rankscope[query]', then the same command again"
"""Message where no data set can be written; results are kept without it."""
ROWS: Final = 2048
"""Rows of one Parquet file: some 6 MB while they are collected, 500 files for a million."""

_ABOUT: Final = "_about.json"
_VERSION: Final = 1


def digest_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's contents; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _About:
    """Contents of `_about.json`: version of the layout, name and digest of the journal, number of rows."""

    version: int
    journal: str
    digest: str
    rows: int


class DataSet:
    """Data set under way in the folder `hidden`; rows come in any order, each with its number from 0 on.

    `columns`: of every row. A file is written when all of its rows have come, or at the end.
    """

    def __init__(self, hidden: Path, kind: str, columns: Sequence[Column]) -> None:
        self._hidden, self._kind, self._columns = hidden, kind, tuple(columns)
        self._waiting: dict[int, dict[int, tuple[Value, ...]]] = {}
        self._rows = 0
        with writing(hidden):
            _removed(hidden)
            hidden.mkdir()

    def add(self, number: int, row: tuple[Value, ...]) -> None:
        """Takes row `number`. InputError if a file that is complete with it cannot be written."""
        part = self._waiting.setdefault(number // ROWS, {})
        part[number] = row
        if len(part) == ROWS:
            self._write(number // ROWS)

    def _write(self, number: int) -> None:
        rows = self._waiting.pop(number, {})
        path = self._hidden / f"part-{number:05}.parquet"
        with writing(path):
            write_part(path, self._kind, self._columns, [rows[at] for at in sorted(rows)])
        self._rows += len(rows)

    def end(self, folder: Path, journal: str, digest: str) -> None:
        """Writes what waits, and puts the data set in the place of an older one in `folder`.

        `journal`: name of the file with the results, whose digest is `digest`. InputError if it cannot be written, or
        if there is a folder of that name that holds something else.
        """
        data, old = folder / DATA, self._hidden.with_name(f"{self._hidden.name}.old")
        expect_ours(folder)
        for number in sorted(self._waiting):
            self._write(number)
        if not self._rows:
            self._write(0)  # a reader learns the columns from it
        about = _About(_VERSION, journal, digest, self._rows)
        with writing(data):
            write_whole(self._hidden / _ABOUT, json.dumps({
                "version": about.version, "journal": about.journal, "digest": about.digest, "rows": about.rows}) + "\n")
            _removed(old)
            with suppress(FileNotFoundError):
                data.rename(old)
            self._hidden.rename(data)
            _removed(old)

    def drop(self) -> None:
        """Removes what is under way."""
        with suppress(OSError):
            _removed(self._hidden)


def _removed(folder: Path) -> None:
    """Removes a folder with its files, if it exists."""
    if folder.is_symlink() or is_file(folder):
        folder.unlink()
    elif is_dir(folder):
        shutil.rmtree(folder)


def expect_ours(folder: Path) -> None:
    """Raises InputError if `folder` has something of another origin in the place of a data set."""
    data = folder / DATA
    if data.is_symlink() or (data.exists() and not is_dir(data)):
        raise InputError(Problem(str(data), "is there, and no folder of rankscope: no rows are written"))
    if is_dir(data) and not is_file(data / _ABOUT) and any(data.iterdir()):
        raise InputError(Problem(str(data), "is there, and no data set of rankscope: no rows are written"))


def is_data_of(folder: Path, digest: str) -> bool:
    """True if the folder has the rows of the file of results with that digest, in this layout."""
    about = _about(folder / DATA / _ABOUT)
    return about is not None and about.version == _VERSION and about.digest == digest


def data_of(folder: Path) -> tuple[Path, ...]:
    """Parquet files of the data set in a folder of `run -o` or `search -o`, in the order of their rows.

    InputError for a folder without one, with one of another version, or with one that is not of its results.
    """
    about = _expected(folder)
    journal = folder / about.journal
    if not is_file(journal):
        raise InputError(Problem(str(folder), f"has rows, but not their results, {about.journal}"))
    with writing(journal):
        digest = digest_of(journal)
    if digest != about.digest:
        message = "has rows of other results than it holds: the same command again with -o writes them anew"
        raise InputError(Problem(str(folder), message))
    files = sorted((folder / DATA).glob("part-*.parquet"))
    return tuple(files)


def _expected(folder: Path) -> _About:
    if not is_dir(folder):
        raise InputError(Problem(str(folder), "expected a folder of `run -o` or `search -o`, there is none"))
    if not is_dir(folder / DATA):
        message = "has no rows to ask: they are written by `run -o` and `search -o`, which need rankscope[query]"
        raise InputError(Problem(str(folder), message))
    about = _about(folder / DATA / _ABOUT)
    if about is None:
        raise InputError(Problem(str(folder / DATA), "is no data set of rankscope"))
    if about.version != _VERSION:
        message = f"is of another version ({about.version}, this is {_VERSION}): the same command writes it anew"
        raise InputError(Problem(str(folder / DATA), message))
    return about


def _about(file: Path) -> _About | None:
    """Contents of a data set's `_about.json`; None if they cannot be read."""
    try:
        read = json.loads(read_text(file))
        version, rows = read["version"], read["rows"]
        journal, digest = str(read.get("journal", "")), str(read.get("digest", ""))
    except (InputError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not (isinstance(version, int) and isinstance(rows, int)) or Path(journal).name != journal:
        return None
    return _About(version, journal, digest, rows)
