"""Pareto charts of a search: their set against every pair of layouts, places in the chart, ends of the staircase."""

from __future__ import annotations

import itertools
import re

import pytest

from found import found
from viz.layouts.front import BOTTOM, TOP, Place, front, front_chart, placed
from viz.layouts.measure import MEASURES, Measure

PAIRS = list(itertools.permutations(MEASURES.values(), 2))


@pytest.mark.parametrize(("across", "upwards"), PAIRS, ids=lambda one: one.name)
def test_the_set_has_what_nothing_dominates(across: Measure, upwards: Measure) -> None:
    shown = placed(found(120).ranked, across, upwards)

    def costs(place: Place) -> tuple[float, float]:
        return place.x * (-1 if across.gains else 1), place.y * (-1 if upwards.gains else 1)

    best = [a.row for a in shown if not any(
        costs(b) != costs(a) and costs(b)[0] <= costs(a)[0] and costs(b)[1] <= costs(a)[1] for b in shown)]
    assert {place.row for place in front(shown, across, upwards)} == set(best)


def test_the_set_of_the_two_objectives_is_that_of_the_search() -> None:
    result = found(120)
    joined = front(placed(result.ranked, MEASURES["peak"], MEASURES["tokens"]), MEASURES["peak"], MEASURES["tokens"])
    assert {place.row for place in joined} == {n for n, one in enumerate(result.ranked) if one.is_pareto}


def test_layouts_without_a_price_are_not_in_a_chart_of_cost() -> None:
    result = found(6)
    free = tuple(one.model_copy(update={"usd_per_million_tokens": None}) for one in result.ranked)
    assert placed(free, MEASURES["cost"], MEASURES["tokens"]) == []
    assert front_chart([], MEASURES["cost"], MEASURES["tokens"], "i") is None
    mixed = placed((free[0], *result.ranked[1:]), MEASURES["cost"], MEASURES["tokens"])
    assert [place.row for place in mixed] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("across", "upwards"), PAIRS, ids=lambda one: one.name)
def test_every_layout_is_a_point_inside_and_the_staircase_ends_on_the_worse_sides(across: Measure, upwards: Measure
                                                                                 ) -> None:
    text = str(front_chart(placed(found(50).ranked, across, upwards), across, upwards, "i"))
    points = re.findall(r'<circle cx="([\d.]+)%" cy="([\d.]+)"', text)
    assert len(points) == 50
    assert all(0 <= float(x) <= 100 and TOP <= float(y) <= BOTTOM for x, y in points)
    path = re.findall(r' d="(M[^"]*)"', text)[0]
    assert path.split("V")[0].endswith(f" {BOTTOM if upwards.gains else TOP}")
    assert path.endswith("H0" if across.gains else "H1000")
