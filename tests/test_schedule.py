"""1F1B: order, depth, and how many microbatches are written out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.schedule import SCHEDULES, Action, actions, lowered_microbatches, steady_microbatch


def in_flight(order: tuple[Action, ...]) -> list[int]:
    """Microbatches that are between forward and backward, after each pass."""
    alive, counts = 0, []
    for action in order:
        alive += 1 if action.forward else -1
        counts.append(alive)
    return counts


@given(st.integers(1, 6), st.integers(1, 20), st.data())
def test_every_microbatch_goes_forward_and_back_once_in_order(num_stages: int, count: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, num_stages - 1))
    order = actions("1f1b", stage, num_stages, count)
    assert [a.microbatch for a in order if a.forward] == list(range(count))
    assert [a.microbatch for a in order if not a.forward] == list(range(count))
    place = {(a.forward, a.microbatch): i for i, a in enumerate(order)}
    assert all(place[True, m] < place[False, m] for m in range(count))
    assert max(in_flight(order)) == min(num_stages - stage, count)
    assert all(a.is_last == (a.microbatch == count - 1) for a in order)


def test_two_stages_three_microbatches() -> None:
    letters = ["".join(f"{'F' if a.forward else 'B'}{a.microbatch}" for a in actions("1f1b", stage, 2, 3))
               for stage in range(2)]
    assert letters == ["F0F1B0F2B1B2", "F0B0F1B1F2B2"]


@pytest.mark.parametrize(("num_stages", "count", "lowered"), [(1, 1, 1), (1, 3, 3), (2, 5, 5), (2, 64, 6)])
def test_a_step_of_many_is_written_out_in_part(num_stages: int, count: int, lowered: int) -> None:
    assert lowered_microbatches(num_stages, count) == lowered


@pytest.mark.parametrize("num_stages", [1, 2, 3, 8])
def test_the_steady_one_is_neither_warm_up_nor_cool_down(num_stages: int) -> None:
    """On every stage its forward follows a backward, its backward follows a forward, and it is not the last."""
    count = lowered_microbatches(num_stages, 1000)
    steady = steady_microbatch(count)
    for stage in range(num_stages):
        before = {b: a for a, b in pairwise(actions("1f1b", stage, num_stages, count)) if b.microbatch == steady}
        assert {mine.forward: other.forward for mine, other in before.items()} == {True: False, False: True}
        assert not any(mine.is_last for mine in before)


def test_schedules_are_named() -> None:
    assert "1f1b" in SCHEDULES
    with pytest.raises(KeyError):
        actions("gpipe", 0, 1, 1)
