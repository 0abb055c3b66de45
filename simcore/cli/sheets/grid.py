"""Table of text with known widths, and names cut into lines where they may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

__all__ = ["GAP", "Filled", "Grid", "cut", "folded", "is_foldable", "wrapped"]

GAP = 2
"""Characters between two columns."""


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


def cut(first: int, widths: Sequence[int], width: int) -> list[range]:
    """Places of the columns of each table: split before they would exceed `width`, with room for `first` before each.

    `first`: width of the column that each table begins with; `widths`: of the others, whose places begin at 0.
    """
    starts, used = [0], first
    for place, wide in enumerate(widths):
        if place > starts[-1] and used + GAP + wide > width:
            starts.append(place)
            used = first
        used += GAP + wide
    return [range(start, end) for start, end in pairwise([*starts, len(widths)])]


def folded(name: str, limit: int) -> Iterator[str]:
    """Lines of a name of at most `limit` characters, further ones indented.

    It is cut after a comma, bracket or dash; what is longer than a line without these, after `=`, `/`, `_` or a dot;
    what is longer still, anywhere.
    """
    line = ""
    for piece in _pieces(name, limit - 2):
        if line.strip() and len(line) + len(piece) > limit:
            yield line
            line = "  "
        line += piece
        while len(line) > limit:
            yield line[:limit]
            line = "  " + line[limit:]
    if line.strip():
        yield line


def is_foldable(name: str, limit: int) -> bool:
    """True if `folded` cuts a name nowhere but after the signs where it may be."""
    return all(len(piece) <= limit - 2 for piece in _pieces(name, limit - 2))


def _pieces(name: str, limit: int) -> Iterator[str]:
    for piece in re.findall(r"[^-,\[]*[-,\[]?", name):
        yield from re.findall(r"[^=/_.]*[=/_.]?", piece) if len(piece) > limit else [piece]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Words of a text in lines of at most `width` characters, further ones after `indent`; long words as `folded`."""
    lines, room = [text[:len(text) - len(text.lstrip())]], width - len(indent)
    for word in text.split():
        first, *others = [word] if cell_len(word) <= room else folded(word, room)
        if lines[-1].strip() and cell_len(lines[-1]) + 1 + cell_len(first) > width:
            lines.append(f"{indent}{first}")
        else:
            lines[-1] += f" {first}" if lines[-1].strip() else first
        lines += [f"{indent}{other.strip()}" for other in others]
    return lines
