"""Tables of a comparison for a terminal: quantities as rows, results as columns; lines about different settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from simcore.cli.sheets.grid import folded, is_foldable
from simcore.cli.sheets.tables import plain
from simcore.results.compare import (
    Comparison,
    RateRow,
    Row,
    Unit,
    format_value,
    part_rows,
    phase_rows,
    room_rows,
    traffic_rows,
)
from simcore.results.evidence import COUNTED

__all__ = ["sheet"]

_NARROW, _WIDE = 16, 17
"""Characters of a column, and of one with percentages of the first."""
_HIGH: Final = 3
"""Lines of a heading at most."""
_DIFFERENCE: Final = 18
"""Characters of the column of differences between two results."""
_LINES: Final = 110
"""Characters of a line below the table at most."""
_LABEL: Final = 22
_MOST: Final = 999
"""Factor up to which it is shown."""
_SAME: Final = 0.5
"""Difference in percent below which a sign stands for it."""
_FACTOR: Final = 400
"""Difference in percent from which on a factor is shown instead, because a wider number would not fit."""
_HEADINGS: Final = {"room": "device", "peak": "at the peak, by category", "at_rest": "at rest, by component",
                    "links": "sent in one step", "time": "time of one step",
                    "parts": "the step, by what the GPU does", "rates": "rates and cost"}


class _Line(NamedTuple):
    """One line of the tables: its label, and a text for each column; a heading has none."""

    label: str
    cells: Sequence[str] = ()


class _Column(NamedTuple):
    """One column: its heading, its width in characters, its place among the cells of a line."""

    heading: str
    width: int
    place: int


def sheet(both: Comparison, width: int) -> list[RenderableType]:
    """Tables of all quantities, results as columns, for a screen of `width` characters; then what they differ in.

    Of two results the difference follows (second less first), of more the first stands in each table, with percentages
    of it. Memory and traffic are those of the worst rank. A quantity that is zero in all results is left out.
    """
    lines = list(_lines(both))
    label = max(_LABEL, *(len(line.label) for line in lines if line.cells))
    heads, legend = _heads([*map(plain, both.names)], width)
    tables = [_table(columns, lines, label) for columns in _columns(heads, width - label)]
    parts = [*legend, *(part for table in tables for part in (*table, "")), *_notes(both, min(width, _LINES))]
    return [Text(part) if isinstance(part, str) else part for part in parts]


def _heads(names: Sequence[str], width: int) -> tuple[list[str], list[str]]:
    """Headings of the results, and lines before the tables: names that are too long for a heading, by a number."""
    if all(len(list(folded(name, _NARROW))) <= _HIGH and is_foldable(name, _NARROW) for name in names):
        return list(names), []
    heads = [f"#{number}" for number in range(1, len(names) + 1)]
    wide = len(heads[-1]) + 2
    legend = [f"{head if not place else '':<{wide}}{line}" for head, name in zip(heads, names, strict=True)
              for place, line in enumerate(folded(name, width - wide))]
    return heads, [*legend, ""]


def _columns(heads: Sequence[str], width: int) -> Iterator[tuple[_Column, ...]]:
    """Columns of each table: as many as `width` characters hold, and at least two."""
    first, *others = [_Column(head, _WIDE if place else _NARROW, place) for place, head in enumerate(heads)]
    if len(others) == 1:
        yield first, others[0]._replace(width=_NARROW), _Column("difference", _DIFFERENCE, 2)
        return
    many = max(1, (width - first.width - 2) // (_WIDE + 2))
    yield from ((first, *others[start : start + many]) for start in range(0, len(others), many))


def _lines(both: Comparison) -> Iterator[_Line]:
    last = [""] * (len(both.names) == 2)
    yield _Line("verdict", [*(plain(verdict) or "-" for verdict in both.verdicts), *last])
    yield _Line("GPUs", [*(f"{number:,}" if number else "-" for number in both.num_gpus), *last])
    if any(both.evidence):
        yield _Line("evidence", [*(kind or "-" for kind in both.evidence), *last])
    for section in both.sections:
        rows = [row for row in _shown(both, section.name, section.rows) if any(row.values)]
        if section.name in _HEADINGS and rows:
            yield _Line(_HEADINGS[section.name])
            yield from (_line(row, row.unit if isinstance(row, RateRow) else section.unit) for row in rows)


def _shown(both: Comparison, section: str, rows: Sequence[Row]) -> Iterator[Row]:
    """Rows of a section as they are shown: of links sums too, of times those that `parts` does not divide further."""
    if section == "links":
        yield from traffic_rows(both)
    elif section == "parts":
        yield from part_rows(both)
    elif section == "time":
        yield from phase_rows(both)
    elif section == "room":
        yield from room_rows(both)
    else:
        yield from (row for row in rows if section != "peak" or row.what not in ("reserved", "device"))


def _line(row: Row, unit: Unit) -> _Line:
    cells = [format_value(value, unit) for value in row.values]
    shares = [f"{_share(row, place):>5}" for place in range(1, len(cells))]
    if len(cells) == 2:
        sign = "+" if row.difference > 0 else ""
        return _Line(plain(f" {row.what}"), [*cells, f"{sign}{format_value(row.difference, unit)} {shares[0]}"])
    beside = (f"{cell} {share}" for cell, share in zip(cells[1:], shares, strict=True))
    return _Line(plain(f" {row.what}"), [cells[0], *beside])


def _share(row: Row, place: int) -> str:
    """Difference to the first result in percent, or as a factor; nothing beside a dash.

    Signs: `=` equal, `~` less than half a percent apart.
    """
    percent = row.percent_of(place)
    if percent is None or not row.values[place]:
        return ""
    if row.values[place] == row.a:
        return "="
    if abs(percent) < _SAME:
        return "~"
    if abs(percent) < _FACTOR:
        return f"{percent:+.0f}%"
    factor = row.values[place] / row.a
    return f"x{factor:.3g}" if abs(factor) < _MOST else f">x{_MOST}"


def _table(columns: Sequence[_Column], lines: Sequence[_Line], label: int) -> Iterator[RenderableType]:
    """Lines of one table; the headings of its columns stand above, on as many lines as they need."""
    heads = [[part.strip() for part in folded(column.heading, column.width)] for column in columns]
    height = max(map(len, heads))
    heads = [[""] * (height - len(head)) + head for head in heads]
    for level in range(height):
        yield Text(_joined("", label, [head[level] for head in heads], columns), style="bold")
    for line in lines:
        if line.cells:
            yield Text(_joined(line.label, label, [line.cells[column.place] for column in columns], columns))
        else:
            yield Text(line.label, style="bold")


def _joined(label: str, wide: int, cells: Sequence[str], columns: Sequence[_Column]) -> str:
    numbers = (f"{cell:>{column.width}}" for cell, column in zip(cells, columns, strict=True))
    return "  ".join((f"{label:<{wide}}", *numbers)).rstrip()


def _notes(both: Comparison, width: int) -> Iterator[str]:
    """Lines about evidence, settings in which the results differ or must, and rates that are counted differently."""
    kinds = [f"{kind} = {words}" for kind, words in COUNTED.items() if kind in both.evidence]
    lines = ["no difference: all numbers and settings are equal"] if both.is_equal else []
    lines += [f"evidence: {'; '.join(kinds)}"] if kinds else []
    lines += [f"{heading}: {'; '.join(map(str, rows))}" for heading, rows in (
        ("differs by default", both.defaults), ("asked differently", both.asked)) if rows]
    if len(set(filter(None, both.conventions))) > 1:
        lines.append(f"MFU and TFLOP/s count FLOPs as: {' | '.join(name or '-' for name in both.conventions)}; "
                     "tokens/s are the same under all")
    lines += [f"{both.names[one.place]}: {one}" for one in both.kept]
    for line in lines:
        yield from textwrap.wrap(plain(line), width, subsequent_indent="  ", break_long_words=False,
                                 break_on_hyphens=False)
