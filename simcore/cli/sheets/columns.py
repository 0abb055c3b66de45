"""Columns about scenarios, split into tables that fit the terminal, for one row or a thousand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich.cells import cell_len
from rich.style import Style

from simcore.cli.sheets.grid import Filled, Grid, cut, folded
from simcore.cli.sheets.tables import plain
from simcore.results.report import Report

__all__ = ["Column", "grids", "named"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of scenarios; `cell` gives the text for a report, `heading` has 1 or 2 lines.

    Lines are separated by line feeds. `justify`: side at which cells are aligned; `coloured`: cells have the colour of
    their row.
    """

    heading: str
    cell: Callable[[Report], str]
    justify: Literal["left", "right"] = "right"
    coloured: bool = False

    def filled(self, reports: Sequence[Report]) -> Filled:
        """This column with the cells of all `reports`, in their order, and its width."""
        cells = [self.heading.split("\n"), *(self.cell(r).split("\n") for r in reports)]
        width = max(cell_len(line) for cell in cells for line in cell)
        return Filled(cells, width, self.justify == "left", self.coloured)


def grids(columns: Sequence[Column], reports: Sequence[Report], styles: Sequence[Style], width: int) -> list[Grid]:
    """Tables with a row a report, below each other: columns that exceed `width` characters start another.

    Each begins with the scenarios' names. `styles`: one a report, for columns that are `coloured`.
    """
    name = named(reports, max(24, width // 4))
    others = [column.filled(reports) for column in columns]
    parts = cut(name.width, [column.width for column in others], width)
    return [Grid((name, *others[part.start:part.stop]), styles) for part in parts]


def named(reports: Sequence[Report], limit: int) -> Filled:
    """Column with the names of the reports, in lines of at most `limit` characters."""
    return Column("scenario", partial(_name, limit=limit), "left").filled(reports)


def _name(report: Report, limit: int) -> str:
    """Name of a report; long names, as of sweeps, are continued on further lines."""
    return "\n".join(folded(plain(report.name), limit))
