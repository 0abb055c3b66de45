"""Orders of passes: every pass once, depth, and how many microbatches are written out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.pipeline.schedule import (
    SCHEDULES,
    Action,
    Pass,
    Schedule,
    actions,
    lowered_microbatches,
    steady_microbatches,
)


def plain(num_stages: int) -> Schedule:
    return Schedule(num_stages=num_stages)


def in_flight(order: tuple[Action, ...]) -> list[int]:
    """Passes through a chunk that are between forward and backward, after each pass."""
    alive, counts = 0, []
    for action in order:
        alive += 1 if action.forward else -1
        counts.append(alive)
    return counts


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[Schedule, int]:
    """A schedule and a number of microbatches that Megatron accepts."""
    num_stages = draw(st.integers(2, 5))
    group = draw(st.integers(num_stages, num_stages + 3))
    rest = draw(st.sampled_from([0, *range(num_stages, group)]))
    return (Schedule("interleaved", num_stages, draw(st.integers(2, 4)), group),
            draw(st.integers(1, 4)) * group + rest)


@given(st.integers(1, 6), st.integers(1, 20), st.data())
def test_every_microbatch_goes_forward_and_back_once_in_order(num_stages: int, count: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, num_stages - 1))
    order = actions(plain(num_stages), stage, count)
    assert [a.microbatch for a in order if a.forward] == list(range(count))
    assert [a.microbatch for a in order if not a.forward] == list(range(count))
    place = {(a.forward, a.microbatch): i for i, a in enumerate(order)}
    assert all(place[True, m] < place[False, m] for m in range(count))
    assert max(in_flight(order)) == min(num_stages - stage, count)
    assert all(a.is_last == (a.microbatch == count - 1) for a in order)


@given(interleaved())
def test_every_microbatch_passes_every_chunk_once(found: tuple[Schedule, int]) -> None:
    """In order of microbatches through each chunk, and forward before backward."""
    schedule, count = found
    for stage in range(schedule.num_stages):
        order = actions(schedule, stage, count)
        for chunk in range(schedule.num_chunks):
            for forward in (True, False):
                mine = [a for a in order if (a.forward, a.chunk) == (forward, chunk)]
                assert [a.microbatch for a in mine] == list(range(count))
                assert [a.is_last for a in mine] == [False] * (count - 1) + [True]
        place = {a.key: i for i, a in enumerate(order)}
        assert all(place[True, c, m] < place[False, c, m] for c in range(schedule.num_chunks) for m in range(count))
        assert sorted(c for a in order for c in a.reduces) == list(range(schedule.num_chunks))


@given(interleaved())
def test_an_interleaved_stage_is_as_deep_as_its_warm_up(found: tuple[Schedule, int]) -> None:
    """2 (p - s - 1) + (v - 1) group passes ahead, and the one of the first 1F1B (get_pp_rank_microbatches)."""
    schedule, count = found
    for stage in range(schedule.num_stages):
        ahead = 2 * (schedule.num_stages - stage - 1) + (schedule.num_chunks - 1) * schedule.group
        assert max(in_flight(actions(schedule, stage, count))) == min(ahead + 1, count * schedule.num_chunks)


@given(interleaved())
def test_no_stage_waits_for_ever(found: tuple[Schedule, int]) -> None:
    """Stages run whenever the pass before theirs is done; every pass is reached."""
    schedule, count = found
    orders = [list(actions(schedule, stage, count)) for stage in range(schedule.num_stages)]
    done: set[tuple[bool, int, int]] = set()
    while any(orders):
        ready = [stage for stage, order in enumerate(orders) if order and _can_run(schedule, stage, order[0], done)]
        assert ready, orders
        for stage in ready:
            action = orders[stage].pop(0)
            done.add((action.forward, action.chunk * schedule.num_stages + stage, action.microbatch))


def _can_run(schedule: Schedule, stage: int, action: Action, done: set[Pass]) -> bool:
    """Chunk k of the model follows k - 1; in backward the last one follows its own forward."""
    at, end = action.chunk * schedule.num_stages + stage, schedule.num_stages * schedule.num_chunks - 1
    if action.forward:
        return at == 0 or (True, at - 1, action.microbatch) in done
    return (action.forward, at + 1, action.microbatch) in done or (at == end and (True, at, action.microbatch) in done)


def test_two_stages_three_microbatches() -> None:
    letters = ["".join(f"{'F' if a.forward else 'B'}{a.microbatch}" for a in actions(plain(2), stage, 3))
               for stage in range(2)]
    assert letters == ["F0F1B0F2B1B2", "F0B0F1B1F2B2"]


@given(st.integers(2, 6), st.integers(1, 20))
def test_gpipe_has_all_microbatches_in_flight(num_stages: int, count: int) -> None:
    schedule = Schedule("gpipe", num_stages)
    for stage in range(num_stages):
        order = actions(schedule, stage, count)
        assert [a.forward for a in order] == [True] * count + [False] * count
        assert [a.microbatch for a in order] == 2 * list(range(count))
        assert max(in_flight(order)) == count
        assert all(a.is_last == (a.microbatch == count - 1) for a in order)
    assert lowered_microbatches(schedule, count) == count


@pytest.mark.parametrize(("num_stages", "count", "lowered"), [(1, 1, 1), (1, 3, 3), (2, 5, 5), (2, 64, 6)])
def test_a_step_of_many_is_written_out_in_part(num_stages: int, count: int, lowered: int) -> None:
    assert lowered_microbatches(plain(num_stages), count) == lowered
    assert lowered_microbatches(plain(num_stages), count, 1) == min(2 * lowered, count)


@pytest.mark.parametrize(("count", "lowered"), [(8, 8), (40, 20), (43, 23), (83, 23)])
def test_of_an_interleaved_one_whole_groups_and_what_is_left_over(count: int, lowered: int) -> None:
    schedule = Schedule("interleaved", 2, 3, 4)
    assert lowered_microbatches(schedule, count) == lowered
    assert len(steady_microbatches(schedule, lowered)) == 4


@pytest.mark.parametrize("num_stages", [1, 2, 3, 8])
def test_the_steady_one_is_neither_warm_up_nor_cool_down(num_stages: int) -> None:
    """On every stage its forward follows a backward, its backward follows a forward, and it is not the last."""
    schedule = plain(num_stages)
    count = lowered_microbatches(schedule, 1000)
    (steady,) = steady_microbatches(schedule, count)
    for stage in range(num_stages):
        before = {b: a for a, b in pairwise(actions(schedule, stage, count)) if b.microbatch == steady}
        assert {mine.forward: other.forward for mine, other in before.items()} == {True: False, False: True}
        assert not any(mine.is_last for mine in before)


@pytest.mark.parametrize("schedule", [Schedule("interleaved", p, v, n) for p, v, n in (
    (2, 2, 2), (2, 4, 2), (4, 2, 4), (4, 3, 6), (8, 2, 8))])
def test_a_steady_group_is_neither_warm_up_nor_cool_down(schedule: Schedule) -> None:
    """Its passes take turns with those of the other direction, through every chunk of every stage."""
    count = lowered_microbatches(schedule, 1000 * schedule.group)
    steady = steady_microbatches(schedule, count)
    for stage in range(schedule.num_stages):
        before = [(a, b) for a, b in pairwise(actions(schedule, stage, count)) if b.microbatch in steady]
        assert len(before) == 2 * schedule.num_chunks * schedule.group
        assert all(a.forward != b.forward for a, b in before)
        assert not any(b.is_last for _, b in before)


def test_schedules_are_named() -> None:
    assert {"1f1b", "gpipe"} <= set(SCHEDULES)
    with pytest.raises(KeyError):
        actions(Schedule("zero_bubble"), 0, 1)
