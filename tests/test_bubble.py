"""Bubbles of pipeline schedules on the timeline: equal stages, messages that take no time, to the nanosecond.

Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), table 1; Narayanan et al. (arXiv 2104.04473), 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from simcore.pipeline.schedule import Action, Schedule, actions
from simcore.program.stage_borders import BORDER_HANDLES
from simcore.recording.tape import Stream
from simcore.timing.dependencies import CollectiveCall, ComputeItem, ExecutionGraph
from simcore.timing.streams import RankStreams
from simcore.timing.timeline import ClassTimes, run

SEND, RECEIVE = int(Stream.SEND), int(Stream.RECEIVE)
Times = tuple[int, int, int]
"""Times of a chunk: forward, gradient of the input, gradients of weights."""


@dataclass(frozen=True)
class Lane:
    """One rank a stage, nothing but messages."""

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        return (number,)

    def name(self, number: int, comm: int) -> str:
        return str(comm)

    def link(self, number: int, comm: int) -> str:
        return ""

    def lane(self, number: int) -> int:
        return 0


class _Rank:
    """Passes become items, and a message for each border that is crossed to another rank."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule = schedule
        self.parts = schedule.parts_of(rank)
        self.items: list[ComputeItem] = []
        self.item_ns: list[int] = []
        self.calls: dict[int, list[CollectiveCall]] = {SEND: [], RECEIVE: []}

    def lay(self, action: Action, ns: int) -> None:
        part, last = self.parts[action.chunk], self.schedule.num_stages * self.schedule.num_chunks - 1
        before, behind = (part - 1, part + 1) if action.forward else (part + 1, part - 1)
        if action.part != "weight" and 0 <= before <= last and before not in self.parts:
            self._item(0, wait_for=self._message(RECEIVE, action, min(part, before)))
        self._item(ns)
        if action.part != "weight" and 0 <= behind <= last and behind not in self.parts:
            self._message(SEND, action, min(part, behind), gate=len(self.items) - 1)

    def _item(self, ns: int, wait_for: int = -1) -> None:
        self.items.append(ComputeItem(len(self.items), None, wait_for))
        self.item_ns.append(ns)

    def _message(self, stream: int, action: Action, border: int, gate: int = -1) -> int:
        number = sum(map(len, self.calls.values()))
        handle = BORDER_HANDLES[not action.forward]
        self.calls[stream].append(CollectiveCall(number, 0, stream, gate, 0, border, handle, action.microbatch, number))
        return number

    def track(self) -> RankStreams:
        streams = {stream: tuple(calls) for stream, calls in self.calls.items()}
        nothing = np.zeros(0, dtype=np.int64)
        silent, at_once = (0,) * sum(map(len, streams.values())), (0,) * len(self.items)
        skeleton = ExecutionGraph(tuple(self.items), streams, nothing)
        return RankStreams(skeleton, tuple(self.item_ns), silent, nothing, at_once, at_once, stops=False)


def ran(schedule: Schedule, num_microbatches: int, times: Times) -> list[ClassTimes]:
    """All ranks; a backward pass that is not split takes as long as both halves."""
    forward, inputs, weights = times
    lengths = {"input": inputs, "weight": weights, "whole": inputs + weights}
    tracks = []
    for rank in range(schedule.num_stages):
        made = _Rank(schedule, rank)
        for action in actions(schedule, rank, num_microbatches):
            made.lay(action, forward if action.forward else lengths[action.part])
        tracks.append(made.track())
    found = run(tracks, Lane())
    assert [len(t.item_ends) for t in found] == [len(t.item_ns) for t in tracks], "a rank waits for ever"
    return found


def bubble(schedule: Schedule, num_microbatches: int, times: Times) -> int:
    """Time of a step beyond the work of one rank."""
    ideal = num_microbatches * schedule.num_chunks * sum(times)
    return max(t.end for t in ran(schedule, num_microbatches, times)) - ideal


SHAPES = [(2, 2), (2, 8), (4, 4), (4, 12), (8, 16), (8, 64)]
"""Stages, microbatches."""


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_1f1b_has_a_bubble_of_p_minus_1_passes_there_and_back(p: int, m: int) -> None:
    """(p - 1) / m of the ideal time."""
    times = (10, 11, 13)
    assert bubble(Schedule("1f1b", p), m, times) * m == (p - 1) * m * sum(times)


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("name", ["interleaved", "looped"])
def test_interleaved_1f1b_has_one_that_is_v_times_smaller(name: str, p: int, m: int, v: int) -> None:
    """(p - 1) / (v m) of the ideal time."""
    times = (10, 11, 13)
    found, ideal = bubble(Schedule(name, p, v, p), m, times), m * v * sum(times)
    assert found * v * m == (p - 1) * ideal


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("times", [(10, 10, 10), (10, 12, 9), (12, 12, 6)])
def test_zb_h1_hides_the_weights_gradients_in_it(p: int, m: int, times: Times) -> None:
    """(p - 1)(F + B - W); a third of 1F1B's where all three take as long."""
    forward, inputs, weights = times
    assert bubble(Schedule("zb_h1", p), m, times) == (p - 1) * (forward + inputs - weights)
    assert 3 * (p - 1) * 10 == bubble(Schedule("1f1b", p), m, (10, 10, 10))


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_zbv_never_waits_once_it_has_begun(p: int, m: int) -> None:
    """With equal times of all three a rank begins when the first microbatch reaches it, and never waits again."""
    for rank, times in enumerate(ran(Schedule("zbv", p, 2), max(m, 2 * p), (10, 10, 10))):
        assert sum(times.waited_at) == 10 * rank


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 12), (8, 16), (8, 64)])
def test_less_is_lost_from_schedule_to_schedule(p: int, m: int) -> None:
    """The model is cut into chunks of half a stage's size if a rank has two of them.

    Of the last two nothing is left but p - 1 passes forward, until the last rank has something to do.
    """
    whole, half = (20, 20, 20), (10, 10, 10)
    found = [bubble(Schedule("1f1b", p), m, whole), bubble(Schedule("looped", p, 2, p), m, half),
             bubble(Schedule("zb_h1", p), m, whole), bubble(Schedule("interleaved_zb", p, 2, p), m, half)]
    assert found == sorted(set(found), reverse=True), found
    assert found[-1] == bubble(Schedule("zbv", p, 2), m, half) == (p - 1) * half[0]
