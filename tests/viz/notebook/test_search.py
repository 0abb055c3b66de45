"""Card of a search in a notebook: its numbers are in it, names are text."""

from __future__ import annotations

from cards import html, parsed, words
from found import found
from reports import EVIL


def test_the_card_has_the_ranking_and_the_pareto_set() -> None:
    result = found(40)
    told = words(result)
    for place, one in enumerate(result.ranked[:20], 1):
        mark = "*" if one.is_pareto else ""
        assert f"{place}{mark} {one.framework}, {one.topology}" in told
        assert f"{one.tokens_per_s_per_gpu:,.0f}" in told
    points = [e for e in parsed(result).iter("circle") if "point" in e.get("class", "")]
    assert len(points) == 40
    assert "first 20 of 40" in told


def test_a_card_runs_nothing() -> None:
    text = html(found(9, text=EVIL.replace("\ud800", "")))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_search_without_layouts_has_a_card() -> None:
    told = words(found(1, ranked=(), best=(), pareto=()))
    assert "No layout fits" in told
    assert "tp 3 divides nothing" in told
