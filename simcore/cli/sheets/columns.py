"""Columns of text with computed widths, split into tables that fit the terminal, for one row or a thousand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from simcore.cli.sheets.tables import plain
from simcore.results.report import Report

__all__ = ["GAP", "Column", "Filled", "Grid", "folded", "grids", "named"]

GAP = 2
"""Characters between two columns."""


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


@dataclass(frozen=True, slots=True)
class Filled:
    """One column as text: `cells[row][line]` with the heading as row 0; `width` of its widest line.

    `left`: aligned at the left, else at the right; `coloured`: cells have the colour of their row.
    """

    cells: list[list[str]]
    width: int
    left: bool
    coloured: bool

    def line(self, row: int, line: int, height: int) -> str:
        """Text of one terminal line of row `row`, padded to the column's width; `line` from 0 to `height` - 1.

        `height`: lines of the row's highest cell. Headings (row 0) are bottom-aligned, cells top-aligned.
        """
        cell = self.cells[row]
        at = line if row else line - height + len(cell)
        text = cell[at] if 0 <= at < len(cell) else ""
        space = " " * (self.width - cell_len(text))
        return text + space if self.left else space + text


@dataclass(frozen=True, slots=True)
class Grid:
    """One table for rich, with known widths: rich's own layout takes seconds for a thousand rows.

    `columns`: all with the same rows, the heading first. `styles`: one for each row below the heading, used by columns
    that are `coloured`.
    """

    columns: Sequence[Filled]
    styles: Sequence[Style]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bold = Style(bold=True)
        yield from self._row(0, [bold] * len(self.columns))
        width = sum(column.width + GAP for column in self.columns) - GAP
        yield Segment(("-" if options.ascii_only else "─") * width + "\n")
        for row, style in enumerate(self.styles, start=1):
            yield from self._row(row, [style if column.coloured else None for column in self.columns])

    def _row(self, row: int, styles: Sequence[Style | None]) -> Iterator[Segment]:
        height = max(len(column.cells[row]) for column in self.columns)
        ends = [" " * GAP] * (len(self.columns) - 1) + ["\n"]
        for line in range(height):
            for column, style, end in zip(self.columns, styles, ends, strict=True):
                yield Segment(column.line(row, line, height), style)
                yield Segment(end)


def grids(columns: Sequence[Column], reports: Sequence[Report], styles: Sequence[Style], width: int) -> list[Grid]:
    """Tables with a row a report, below each other: columns that exceed `width` characters start another.

    Each begins with the scenarios' names. `styles`: one a report, for columns that are `coloured`.
    """
    name = named(reports, max(24, width // 4))
    parts = _cut(name, [column.filled(reports) for column in columns], width)
    return [Grid((name, *part), styles) for part in parts]


def named(reports: Sequence[Report], limit: int) -> Filled:
    """Column with the names of the reports, in lines of at most `limit` characters."""
    return Column("scenario", partial(_name, limit=limit), "left").filled(reports)


def _cut(name: Filled, columns: Sequence[Filled], width: int) -> list[list[Filled]]:
    """Columns, split before they would exceed `width`, with room for the names before each part."""
    parts: list[list[Filled]] = [[]]
    used = name.width
    for column in columns:
        wide = GAP + column.width
        if parts[-1] and used + wide > width:
            parts.append([])
            used = name.width
        parts[-1].append(column)
        used += wide
    return parts


def _name(report: Report, limit: int) -> str:
    """Name of a report; long names, as of sweeps, are continued on further lines."""
    return "\n".join(folded(plain(report.name), limit))


def folded(name: str, limit: int) -> Iterator[str]:
    """Lines of a name, cut after a comma, bracket or dash if there is one."""
    line = ""
    for piece in re.findall(r"[^-,\[]*[-,\[]?", name):
        if line.strip() and len(line) + len(piece) > limit:
            yield line
            line = "  "
        line += piece
        while len(line) > limit:
            yield line[:limit]
            line = "  " + line[limit:]
    if line.strip():
        yield line
