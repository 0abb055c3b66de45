"""The bands of the memory chart: their order, their edges, the ticks."""

from __future__ import annotations

import itertools

import pytest

from reports import GIB, small_rank, small_series
from viz.charts.stack import edges, gib_ticks, has_time, layer_order, stack, ticks, totals


def test_the_heights_of_the_layers_add_up_to_the_total_at_each_sample() -> None:
    series = small_series()
    bands = stack(series, layer_order(small_rank(series)))
    assert tuple(map(sum, zip(*(band.heights for band in bands), strict=True))) == totals(series)
    assert bands[0].upper == totals(series)
    assert bands[-1].lower == (0,) * len(series.event_index)
    assert all(above.lower == below.upper for above, below in itertools.pairwise(bands))


def test_layers_that_come_and_go_lie_on_those_that_are_held_each_largest_first() -> None:
    assert layer_order(small_rank()) == ("activation", "backward_temp", "sharded_param", "opt_state")


def test_dates_never_run_backwards() -> None:
    x = edges(small_series(), "time")
    assert list(x) == sorted(x)
    assert x[:6] == (0.0, 0.1, 0.1, 0.5, 0.5, 0.9)


def test_a_series_without_a_timeline_has_no_time() -> None:
    assert has_time(small_series())
    assert not has_time(small_series(time_s=(0.0,) * 6))


@pytest.mark.parametrize("gib", [0.003, 0.4, 1, 7, 79.65, 180, 20_000])
def test_ticks_are_round_and_few(gib: float) -> None:
    marks = gib_ticks(gib * GIB)
    assert marks[0][0] == 0
    assert 3 <= len(marks) <= 10
    assert len({label for _, label in marks}) == len(marks)
    assert marks[-1][0] <= gib * GIB * 1.001


def test_ticks_lie_inside() -> None:
    assert ticks(3.0, 61.0, 8) == (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
