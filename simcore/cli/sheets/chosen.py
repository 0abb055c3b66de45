"""Table with columns that a user chose by name: rows of results, units as in the other tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from simcore.cli.sheets.grid import Grid
from simcore.cli.sheets.tables import plain
from simcore.cli.sheets.word_table import WordTable
from simcore.results.frame import Field, Value
from simcore.units import format_bytes, format_seconds

__all__ = ["chosen_columns"]

T = TypeVar("T")


def chosen_columns(rows: Sequence[T], fields: Sequence[Field[T]], styles: Sequence[str], width: int) -> list[Grid]:
    """Tables with a row a result and a column a field: one, or several below each other that begin with the first.

    `styles`: of rich, one a row, for the column `verdict`; `width`: characters of a line.
    """
    names = [field.column.name for field in fields]
    words = [field.column.name for field in fields if field.column.dtype in ("string", "bool")]
    table = WordTable(*names, left=words, coloured=["verdict"])
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*(_shown(field.value(row), field.column.unit) for field in fields), style=style)
    return table.grids(width)


def _shown(value: Value, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return plain(value)
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
