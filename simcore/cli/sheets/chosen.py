"""Table with columns that a user chose by name: rows of results, units as in the other tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.style import Style

from simcore.cli.sheets.columns import Column
from simcore.cli.sheets.grid import Grid
from simcore.cli.sheets.summary import STYLE, verdict
from simcore.cli.sheets.tables import plain
from simcore.results.frame import Field, Value
from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds

__all__ = ["chosen_columns"]


def chosen_columns(reports: Sequence[Report], fields: Sequence[Field[Report]]) -> Grid:
    """Table with a row a report and a column a field, as wide as its widest cell."""
    styles = [Style.parse(STYLE[verdict(report)]) for report in reports]
    columns = [Column(field.column.name, partial(_cell, field), "left" if field.column.dtype in ("string", "bool")
                      else "right", coloured=field.column.name == "verdict").filled(reports) for field in fields]
    return Grid(columns, styles)


def _cell(field: Field[Report], report: Report) -> str:
    return _shown(field.value(report), field.column.unit)


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
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
