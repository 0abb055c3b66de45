"""Measures of a layout: which ones a search shows, and which pairs are Pareto charts."""

from __future__ import annotations

import pytest

from found import found
from viz.layouts.measure import measures_of, pairs_of


@pytest.mark.parametrize(("objectives", "pairs"), [
    (("tokens", "peak"), ["peak tokens"]), (("peak",), ["tokens peak"]), (("cost",), ["peak cost"]),
    (("gpus", "tokens", "peak"), ["tokens gpus", "peak gpus"])])
def test_the_first_objective_is_upwards(objectives: tuple[str, ...], pairs: list[str]) -> None:
    result = found(9, objectives=objectives)
    assert [f"{across.name} {upwards.name}" for across, upwards in pairs_of(result)] == pairs


def test_measures_have_a_value_for_every_layout() -> None:
    result = found(9)
    assert [one.name for one in measures_of(result)] == ["tokens", "peak", "step", "cost"]
    free = (result.ranked[0].model_copy(update={"usd_per_million_tokens": None}), *result.ranked[1:])
    assert [one.name for one in measures_of(found(9, ranked=free))] == ["tokens", "peak", "step"]
    assert "gpus" in [one.name for one in measures_of(found(9, objectives=("gpus", "peak")))]
