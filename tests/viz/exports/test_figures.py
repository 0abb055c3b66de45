"""Figures are complete files: well-formed, with every colour and texture that they use."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from functools import cache

import pytest

import small
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.exports.figures import WIDTH, as_png, figures, letters


@cache
def report(name: str = "small") -> Report:
    simulated = simulate(small.scenario("automodel", {"dp_shard": 2, "pp": 5}, microbatches=5), detail=True)
    return simulated.model_copy(update={"name": name})


def test_each_picture_is_there() -> None:
    names = [name for name, _ in figures([report()])]
    assert names[:2] == ["01-small-placement", "01-small-streams"]
    kinds = {name.removeprefix("01-small-").rstrip("-0123456789") for name in names}
    assert kinds == {"placement", "streams", "memory", "memory-0-time", "memory-1-time", "memory-2-time",
                     "memory-3-time", "memory-4-time", "memory-0-parts", "memory-1-parts", "memory-2-parts",
                     "memory-3-parts", "memory-4-parts", "peak", "traffic"}


def test_a_batch_has_its_scatters() -> None:
    names = [name for name, _ in figures([report(), report("other")])]
    assert names[:2] == ["pareto-time", "pareto-cost"]


def test_a_figure_brings_all_that_it_names() -> None:
    for _, text in figures([report()]):
        root = ET.fromstring(text.partition("\n")[2])  # noqa: S314 - written by us
        assert float(root.attrib["width"]) == WIDTH
        identities = {e.get("id") for e in root.iter()}
        assert set(re.findall(r"url\(#([a-z-]+)\)", text)) <= identities
        assert "var(" not in text
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_classes_that_are_drawn_have_rules() -> None:
    for name, text in figures([report()]):
        root = ET.fromstring(text.partition("\n")[2])  # noqa: S314 - written by us
        style = "".join(e.text or "" for e in root.iter() if e.tag.endswith("style"))
        fills = {word for e in root.iter() for word in e.get("class", "").split() if word.startswith("fill-")}
        assert fills
        assert all(f".{word} {{" in style or f".{word}{{" in style for word in fills), name


def test_names_of_files_are_harmless() -> None:
    names = [name for name, _ in figures([report("../../etc/pass wd\x00<script>")])]
    assert all(re.fullmatch(r"[A-Za-z0-9.=-]+", name) and ".." not in name.strip(".") for name in names)


def test_letters_are_drawn_in_a_family_of_this_machine() -> None:
    """Without such a family PNG images would have no text, and no error would say so."""
    pytest.importorskip("resvg_py")
    if not letters():
        pytest.skip("this machine has none of the fonts")
    svg = next(text for name, text in figures([report()]) if name.endswith("streams"))
    assert as_png(svg) != as_png(re.sub(r"(<text[^>]*>)[^<]*", r"\1", svg))


def test_points_on_the_edge_look_different_from_others() -> None:
    """Rules for an element with a class are included too: the legend says that points of the edge are black."""
    _, text = next(iter(figures([report(), report("other")])))
    fills = dict(re.findall(r"circle\.point([\w.-]*)\{[^}]*?fill: (#\w+)", text))
    assert set(fills) == {"", ".on-edge", ".unsure"}
    assert len(set(fills.values())) == 3
