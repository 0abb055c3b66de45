"""A table of results as a file: CSV by the standard library, Parquet by pyarrow (the extra `parquet`).

[Note: formulas in names]
A spreadsheet runs a cell that begins with =, +, - or @, quoted or not, and some split a line at semicolons, even inside
quotes. Names come from files, so in a CSV an apostrophe is put before such a sign, at the beginning of a text and after
a semicolon. Numbers are written as numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from simcore.errors import InputError, Problem
from simcore.inputs.paths import whole, write_whole
from simcore.results.frame import Column, Frame, Value
from simcore.results.report import SCHEMA_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow", "check_parquet", "has_arrow", "write_csv", "write_parquet", "write_part", "write_rows"]

# Full-width signs count as well, as spreadsheets in Chinese, Japanese or Korean accept them.
_FORMULA: Final = re.compile("(^|;)(\\s*)(?=[=+\\-@\uff1d\uff0b\uff0d\uff20])")


def write_csv(path: Path, frame: Frame) -> int:
    """Writes a table as CSV: a line of column names, then a line for each row; UTF-8, lines end with LF.

    An empty cell is a missing value; booleans are `true` and `false`. OSError if the file cannot be written. Returns
    the number of cells (column names not counted) whose text got an apostrophe, because a spreadsheet would read a
    formula.
    """
    return write_rows(path, [tuple(column.name for column in frame.columns), *frame.rows])


def write_rows(path: Path, rows: Sequence[Sequence[Value]]) -> int:
    """Writes rows, of which the first has the names of columns, as `write_csv` does; returns the same number."""
    lines = [[_cell(value) for value in row] for row in rows]
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_whole(path, text.getvalue())
    texts = (pair for row, line in zip(rows[1:], lines[1:], strict=True) for pair in zip(row, line, strict=True))
    return sum(isinstance(value, str) and value != cell for value, cell in texts)


def _cell(value: Value) -> Value:
    if isinstance(value, bool):
        return str(value).lower()
    return _harmless(value) if isinstance(value, str) else value


def _harmless(text: str) -> str:
    return _FORMULA.sub(r"\1\2'", text)


def has_arrow() -> bool:
    """True if pyarrow is installed."""
    try:
        return find_spec("pyarrow") is not None
    except ValueError:  # in sys.modules as None
        return False


def check_parquet() -> None:
    """Raises InputError, with the command that installs it, if pyarrow is missing."""
    if not has_arrow():
        message = "needs pyarrow, which is not installed: pip install 'rankscope[parquet]'; csv needs nothing"
        raise InputError(Problem("parquet", message))


def write_parquet(path: Path, frame: Frame) -> None:
    """Writes a table as a Parquet file, with the types and metadata of `arrow`.

    OSError if it cannot be written; InputError without pyarrow, and for a number in a result that exceeds 64 bits.
    """
    check_parquet()
    write_part(path, frame.kind, frame.columns, frame.rows)


def write_part(path: Path, kind: str, columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> None:
    """Writes rows as a Parquet file, as `write_parquet` does; pyarrow must be there."""
    from pyarrow import parquet

    try:
        arrow_table = _arrow(kind, columns, rows)
    except OverflowError as error:
        raise InputError(Problem(str(path), f"a number of these results passes 64 bits: {error}")) from None
    with whole(path) as file:
        parquet.write_table(arrow_table, file)


def arrow(frame: Frame) -> pa.Table:
    """Converts `frame` to a pyarrow table: typed columns, each with metadata `unit` and `description`; nulls.

    OverflowError for a whole number that exceeds 64 bits; ImportError without pyarrow.
    """
    return _arrow(frame.kind, frame.columns, frame.rows)


def _arrow(kind: str, columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> pa.Table:
    import pyarrow as pa

    about = {"rankscope.table": kind, "rankscope.schema_version": SCHEMA_VERSION}
    schema = pa.schema([_arrow_field(column) for column in columns], metadata=about)
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.table([pa.array(one, field.type) for one, field in zip(values, schema, strict=True)], schema=schema)


def _arrow_field(column: Column) -> pa.Field:
    import pyarrow as pa

    types = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
    return pa.field(column.name, types[column.dtype], metadata={"unit": column.unit, "description": column.words})
