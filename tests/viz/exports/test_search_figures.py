"""Figures of a search: names beside the Pareto set are whole, apart from each other, and inside the picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from found import found
from reports import EVIL
from viz.exports.figures import WIDTH, as_png
from viz.exports.search_figures import search_figures
from viz.layouts.name_column import LETTER

LONG = "_a_word_without_any_place_to_break" * 4


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of each line of a name in pixels of the column, by the width of its letters."""
    found_lines = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="front-name">([^<]*)<', svg)
    return [(float(x), float(y) - 10, float(x) + len(text) * LETTER, float(y) + 3) for x, y, text in found_lines]


@pytest.mark.parametrize("text", ["", LONG, " many words" * 12])
def test_names_of_the_set_do_not_overlap(text: str) -> None:
    figures = dict(search_figures([found(200, text=text)]))
    svg = next(svg for name, svg in figures.items() if "pareto" in name)
    lines = boxes(svg)
    assert len(lines) >= 4
    height = float(re.findall(r'viewBox="0 0 \d+ (\d+)"', svg)[0])
    for n, (left, top, right, bottom) in enumerate(lines):
        assert top > -4
        assert bottom + 50 < height
        assert right + 64 <= WIDTH
        assert not [b for b in lines[n + 1:] if left < b[2] and b[0] < right and top < b[3] and b[1] < bottom]


def test_each_search_has_its_figures_and_they_are_well_formed() -> None:
    figures = dict(search_figures([found(30), found(30, text=EVIL.replace("\ud800", ""), objectives=("gpus", "tokens",
                                                                                                  "peak"))]))
    assert len(figures) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9.=-]+", name) for name in figures)
    for svg in figures.values():
        root = ET.fromstring(svg)  # noqa: S314 - written by us
        assert not [e for e in root.iter() if e.tag.endswith("script")]
        assert "var(--" not in svg
    assert dict(search_figures([found(1, ranked=(), best=(), pareto=())])) == {}


def test_a_figure_is_an_image() -> None:
    pytest.importorskip("resvg_py")
    for _, svg in search_figures([found(30)]):
        assert as_png(svg)[:4] == b"\x89PNG"
