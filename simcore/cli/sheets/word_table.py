"""Table for a terminal in which no word and no number is broken, however narrow it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from simcore.cli.sheets.grid import GAP, Filled, Grid, cut, wrapped

__all__ = ["WordTable"]

_NAME: Final = 24
"""Characters of a word that may always stand in one line."""


class WordTable:
    """Table with a first column of names and further columns under the headings `others`.

    `left`: headings of columns of words, which are left-aligned; the others are numbers and right-aligned.
    `coloured`: headings of columns that have the style of their row, None: all. Where a terminal is too
    narrow, words wrap; columns that do not fit even so follow below, after the first one again.
    """

    def __init__(self, first: str, *others: str, left: Sequence[str] = (), coloured: Sequence[str] | None = None,
                 ) -> None:
        self._heads = first, *others
        self._left = [heading in left for heading in self._heads]
        self._coloured = [coloured is None or heading in coloured for heading in self._heads]
        self._rows: list[tuple[str, ...]] = []
        self._styles: list[str] = []
        self._sections: set[int] = set()

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Adds a row with a text for each column, all in a style of rich; None: in none."""
        self._rows.append(cells)
        self._styles.append(style or "")

    def add_section(self) -> None:
        """Sets further rows apart, where the terminal is wide enough for the table as it is."""
        self._sections.add(len(self._rows))

    @property
    def width(self) -> int:
        """Characters of a line that hold every row in one line."""
        return sum(max(map(cell_len, column)) for column in self._columns()) + 3 * len(self._heads) + 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.width <= options.max_width:
            yield self._whole()
            return
        for grid in self.grids(options.max_width):
            yield Text()
            yield grid
        yield Text()

    def grids(self, width: int) -> list[Grid]:
        """Tables below each other whose lines have at most `width` characters, without lines around them."""
        styles = [Style.parse(style) if style else Style() for style in self._styles]
        return [Grid(part, styles) for part in self._parts(width)]

    def _columns(self) -> list[tuple[str, ...]]:
        """Texts of each column, the heading first."""
        return list(zip(self._heads, *self._rows, strict=True))

    def _whole(self) -> Table:
        """The table with each row in one line."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading, left in zip(self._heads, self._left, strict=True):
            table.add_column(Text(heading), justify="left" if left else "right", overflow="fold")
        for place, (cells, style) in enumerate(zip(self._rows, self._styles, strict=True)):
            if place in self._sections:
                table.add_section()
            table.add_row(*map(Text, cells), style=style or None)
        return table

    def _parts(self, width: int) -> Iterator[list[Filled]]:
        """Columns of each table, the first among them; texts in as many lines as they need."""
        columns = [_Column(heading, cells, left, coloured) for (heading, *cells), left, coloured
                   in zip(self._columns(), self._left, self._coloured, strict=True)]
        least = [column.least(max(_NAME, width // (2 if at else 3))) for at, column in enumerate(columns)]
        for part in cut(least[0], least[1:], width):
            places = 0, *(at + 1 for at in part)
            chosen = [columns[at] for at in places]
            wide = _widened([least[at] for at in places], [column.most for column in chosen], width - GAP * len(part))
            yield [column.filled(each) for column, each in zip(chosen, wide, strict=True)]


@dataclass(frozen=True, slots=True)
class _Column:
    """Texts of a column; `left`: words, which may be wrapped, else numbers; `coloured`: in the style of their rows."""

    heading: str
    cells: Sequence[str]
    left: bool
    coloured: bool

    def least(self, limit: int) -> int:
        """Characters of the longest word or number; a word of more than `limit` may be cut."""
        words = (word for text in (self.heading, *(self.cells if self.left else ())) for word in text.split())
        return max((*(min(cell_len(word), limit) for word in words), *([] if self.left else map(cell_len, self.cells))),
                   default=0)

    @property
    def most(self) -> int:
        """Characters of the longest text; of numbers, whose heading may wrap, of the longest number."""
        return max(map(cell_len, (self.heading, *self.cells) if self.left else self.cells), default=0)

    def filled(self, width: int) -> Filled:
        """The column in lines of `width` characters."""
        lines = [wrapped(self.heading, width), *(wrapped(cell, width) if self.left else [cell] for cell in self.cells)]
        return Filled(lines, max(cell_len(line) for cell in lines for line in cell), self.left, self.coloured)


def _widened(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths between the two of each column that share `room` characters; narrow columns get what they need first."""
    wide, spare = list(least), max(0, room - sum(least))
    for taken, at in enumerate(sorted(range(len(least)), key=lambda at: most[at] - least[at])):
        more = min(max(0, most[at] - least[at]), spare // (len(least) - taken))
        wide[at] += more
        spare -= more
    return wide
