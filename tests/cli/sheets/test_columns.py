"""Columns of text: cut into grids that fit, to the character."""

from __future__ import annotations

import io

from rich.console import Console
from rich.style import Style

from fakes import report
from simcore.cli.sheets.columns import Column, grids

COLUMNS = [Column("left\nhead", lambda one: one.name.upper(), "left"), Column("n", lambda one: str(len(one.name)))]


def lines(*names: str, width: int = 80) -> list[list[str]]:
    made = []
    for grid in grids(COLUMNS, [report(name) for name in names], [Style()] * len(names), width):
        stream = io.StringIO()
        Console(file=stream, width=width, color_system=None).print(grid)
        made.append(stream.getvalue().splitlines())
    return made


def test_headings_stand_at_the_bottom_and_numbers_right() -> None:
    assert lines("abcdefghijkl", "b") == [[
        "              left            ",
        "scenario      head           n",
        "─" * 30,
        "abcdefghijkl  ABCDEFGHIJKL  12",
        "b             B              1",
    ]]


def test_what_does_not_fit_follows_below_with_the_names_again() -> None:
    first, second = lines("abcdefghijkl", width=27)
    assert first[-1] == "abcdefghijkl  ABCDEFGHIJKL"
    assert second[-1] == "abcdefghijkl  12"
