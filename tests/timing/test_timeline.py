"""Streams run at once, links are shared, ranks wait for each other: by hand, in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from simcore.recording.tape import Stream
from simcore.timing.dependencies import CollectiveCall, ComputeItem, ExecutionGraph
from simcore.timing.streams import RankStreams
from simcore.timing.timeline import ClassTimes, Deadlock, run

GATHER, REDUCE = int(Stream.ALL_GATHER), int(Stream.REDUCE)


Timed = tuple[CollectiveCall, int]
"""A call, and how long it takes."""


def call(number: int, ns: int, stream: int, *, gate: int = -1, serial: int = 0, comm: int = 0, layer: int = 0) -> Timed:
    return CollectiveCall(number, comm, Stream(stream), gate, serial, layer, 0, 0, number), ns


def item(ns: int, call: Timed | None = None, wait_for: int = -1) -> tuple[int, Timed | None, int]:
    return ns, call, wait_for


def track(items: list[tuple[int, Timed | None, int]], calls: Mapping[int, list[Timed]] | None = None) -> RankStreams:
    streams = {int(stream): tuple(made for made, _ in found) for stream, found in (calls or {}).items()}
    every = [timed for found in (calls or {}).values() for timed in found] + [made for _, made, _ in items if made]
    lengths = tuple(ns for _, ns in sorted(every, key=lambda timed: timed[0].number))
    made = tuple(ComputeItem(row, timed and timed[0], wait_for) for row, (_, timed, wait_for) in enumerate(items))
    nothing = np.zeros(0, dtype=np.int64)
    at_once = (0,) * len(items)
    return RankStreams(ExecutionGraph(made, streams, nothing), tuple(ns for ns, _, _ in items), lengths, nothing,
                       at_once, at_once,
                 stops=False)


@dataclass(frozen=True)
class Wires:
    """All classes meet, or none do; all communicators share a link, or none do."""

    together: tuple[int, ...] = ()
    shared: bool = True

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        return self.together or (number,)

    def name(self, number: int, comm: int) -> str:
        return str(comm)

    def link(self, number: int, comm: int) -> str:
        return "link" if self.shared else f"link {comm}"

    def lane(self, number: int) -> int:
        return 0


class Pair(Wires):
    """Two classes that meet in communicator 0 alone."""

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        return (0, 1) if comm == 0 else (number,)


def run_one(one: RankStreams, *, shared: bool = False) -> ClassTimes:
    (times,) = run([one], Wires(shared=shared))
    return times


def spans(times: ClassTimes) -> dict[int, tuple[int, int]]:
    return {made.number: (start, end) for made, start, end in times.calls}


def test_kernels_run_one_after_another() -> None:
    times = run_one(track([item(10), item(5)]))
    assert (times.item_ends, times.end, sum(times.waited_at)) == ([10, 15], 15, 0)


def test_a_collective_hides_behind_kernels() -> None:
    times = run_one(track([item(10, wait_for=0), item(5)], {GATHER: [call(0, 8, GATHER)]}))
    assert (times.end, sum(times.waited_at)) == (15, 0)


def test_what_it_takes_longer_is_waited_for() -> None:
    times = run_one(track([item(10, wait_for=0), item(5)], {GATHER: [call(0, 18, GATHER)]}))
    assert (times.item_ends, sum(times.waited_at), times.end) == ([18, 23], 8, 23)


def test_a_gate_holds_a_call_back() -> None:
    times = run_one(track([item(10), item(5)], {REDUCE: [call(0, 8, REDUCE, gate=0)]}))
    assert spans(times) == {0: (10, 18)}
    assert times.end == 18


def test_calls_of_a_stream_queue() -> None:
    times = run_one(track([item(1)], {GATHER: [call(0, 8, GATHER), call(1, 4, GATHER, serial=1)]}))
    assert spans(times) == {0: (0, 8), 1: (8, 12)}


@pytest.mark.parametrize(("shared", "end"), [(False, 8), (True, 16)])
def test_streams_share_a_link_or_do_not(shared: bool, end: int) -> None:
    calls = {GATHER: [call(0, 8, GATHER)], REDUCE: [call(1, 8, REDUCE, comm=1)]}
    assert run_one(track([item(1)], calls), shared=shared).end == end


def test_who_asks_first_for_a_link_gets_it_whatever_the_order_of_streams() -> None:
    calls = {GATHER: [call(0, 8, GATHER, gate=1)], REDUCE: [call(1, 8, REDUCE, gate=0, comm=1)]}
    times = run_one(track([item(3), item(2)], calls), shared=True)
    assert spans(times) == {1: (3, 11), 0: (11, 19)}


def test_a_link_stays_taken_while_its_call_waits_for_another_rank() -> None:
    """The slow rank meets the fast one at 10; only then can the fast one's other stream send."""
    gather, reduce = [call(0, 5, GATHER, gate=0)], [call(1, 7, REDUCE, gate=1, comm=1)]
    fast, slow = run([track([item(2), item(1)], {GATHER: gather, REDUCE: reduce}), track([item(10)], {GATHER: gather})],
                     Pair())
    assert spans(fast) == {0: (2, 15), 1: (15, 22)}
    assert spans(slow) == {0: (10, 15)}


def test_unequal_parts_take_as_long_as_the_largest() -> None:
    def one(ns: int) -> RankStreams:
        return track([item(1, call=call(0, ns, Stream.COMPUTE))])

    assert [times.end for times in run([one(4), one(9)], Wires(together=(0, 1)))] == [10, 10]


def test_an_in_line_call_stops_the_kernels() -> None:
    times = run_one(track([item(3, call=call(0, 4, Stream.COMPUTE)), item(2)]))
    assert (times.item_ends, sum(times.waited_at)) == ([7, 9], 4)


def test_a_collective_begins_when_the_last_rank_is_there() -> None:
    def one(before: int) -> RankStreams:
        return track([item(before, call=call(0, 4, Stream.COMPUTE)), item(1)])

    fast, slow = run([one(2), one(10)], Wires(together=(0, 1)))
    assert (fast.item_ends, slow.item_ends) == ([14, 15], [14, 15])
    assert (sum(fast.waited_at), sum(slow.waited_at)) == (12, 4)


def test_groups_that_do_not_meet_do_not_wait() -> None:
    def one(before: int) -> RankStreams:
        return track([item(before, call=call(0, 4, Stream.COMPUTE))])

    fast, slow = run([one(2), one(10)], Wires())
    assert (fast.end, slow.end) == (6, 14)


def test_a_message_arrives_when_its_sender_is_done() -> None:
    sender = track([item(10)], {Stream.SEND: [call(0, 5, Stream.SEND, gate=0, layer=3)]})
    receiver = track([item(1, wait_for=0), item(2)], {Stream.RECEIVE: [call(0, 5, Stream.RECEIVE, layer=3)]})
    first, second = run([sender, receiver], Wires())
    assert first.end == 15
    assert (second.item_ends, sum(second.waited_at)) == ([15, 17], 14)


def test_a_message_that_is_there_already_is_not_waited_for() -> None:
    sender = track([item(1)], {Stream.SEND: [call(0, 5, Stream.SEND, gate=0, layer=3)]})
    receiver = track([item(20, wait_for=0)], {Stream.RECEIVE: [call(0, 5, Stream.RECEIVE, layer=3)]})
    _, second = run([sender, receiver], Wires())
    assert (second.end, sum(second.waited_at)) == (20, 0)


def hosted(host_ns: tuple[int, ...], tails: tuple[int, ...], *, stops: bool = False) -> RankStreams:
    """Two items of 10 ns each; the host is told to stop at the first."""
    items = (ComputeItem(0, stops_host=True), ComputeItem(1))
    nothing = np.zeros(0, dtype=np.int64)
    return RankStreams(ExecutionGraph(items, {}, nothing), (10, 10), (), nothing, host_ns, tails, stops=stops)


def test_kernels_wait_for_a_slow_host() -> None:
    """The first kernel is issued after 30 ns and ends at 40; the second is issued at 60."""
    (times,) = run([hosted((30, 30), (40, 40))], Wires())
    assert (times.item_ends, times.idle_at) == ([40, 70], [30, 20])


def test_a_host_that_is_ahead_is_not_waited_for() -> None:
    (times,) = run([hosted((1, 1), (11, 11))], Wires())
    assert (times.item_ends, times.idle_at) == ([11, 21], [1, 0])


def test_a_host_that_stops_starts_again_from_the_device() -> None:
    """It issues the second kernel 1 ns after the first is done."""
    (times,) = run([hosted((1, 1), (11, 11), stops=True)], Wires())
    assert (times.item_ends, times.idle_at) == ([11, 22], [1, 1])


@pytest.mark.parametrize(("stops", "ends"), [(False, [10, 20]), (True, [10, 31])])
def test_a_host_that_waits_for_messages_issues_nothing_until_one_is_sent(stops: bool, ends: list[int]) -> None:
    """Sent 10 ns after the first kernel; the second is issued 1 ns later, or at once."""
    sent, length = call(0, 10, Stream.SEND, gate=0)
    nothing = np.zeros(0, dtype=np.int64)
    items = (ComputeItem(0), ComputeItem(0, message=0), ComputeItem(1))
    streams = RankStreams(ExecutionGraph(items, {int(Stream.SEND): (sent,)}, nothing), (10, 0, 10), (length,), nothing,
                       (0, 0, 1),
                 (0, 0, 11), stops=True, stops_at_messages=stops)
    [times] = run([streams], Wires())
    assert [times.item_ends[0], times.item_ends[2]] == ends


def test_a_host_that_waits_for_messages_goes_on_when_one_has_arrived() -> None:
    sender = track([item(30)], {Stream.SEND: [call(0, 5, Stream.SEND, gate=0, layer=3)]})
    received, length = call(0, 5, Stream.RECEIVE, layer=3)
    nothing = np.zeros(0, dtype=np.int64)
    items = (ComputeItem(0, wait_for=0, message=0), ComputeItem(1))
    receiver = RankStreams(ExecutionGraph(items, {int(Stream.RECEIVE): (received,)}, nothing), (1, 10), (length,),
                           nothing, (0, 4),
                     (0, 14), stops=True, stops_at_messages=True)
    _, times = run([sender, receiver], Wires())
    assert times.item_ends == [35, 49]


class Numbered(Wires):
    """Class 1 has used another communicator before the one in which it meets class 0."""

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        return (0, 1) if comm == number else (number,)

    def name(self, number: int, comm: int) -> str:
        return "gather" if comm == number else f"own {comm}"


def test_classes_meet_whatever_number_each_has_for_the_communicator() -> None:
    one, other = (track([item(1)], {GATHER: [call(0, ns, GATHER, comm=comm)]}) for comm, ns in enumerate((5, 7)))
    assert [times.end for times in run([one, other], Numbered())] == [7, 7]


class Missed(Wires):
    """Class 1 meets class 0, which meets only itself."""

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        return (0, 1) if number else (0,)


def told(tracks: list[RankStreams], wires: Wires) -> str:
    with pytest.raises(Deadlock) as caught:
        run(tracks, wires)
    return str(caught.value)


def test_a_class_whose_others_never_come_is_told_with_all_that_waits_for_it() -> None:
    """The gather of class 1 waits for class 0, its kernel for the gather, its reduction for the kernel."""
    calls = {GATHER: [call(0, 5, GATHER)], REDUCE: [call(1, 5, REDUCE, gate=1)]}
    waiting = track([item(1, wait_for=0), item(1)], calls)
    message = told([track([item(1)], {GATHER: [call(0, 5, GATHER)]}), waiting], Missed())
    assert message.startswith("the timeline ended, but 3 of 5 streams wait: ")
    assert "class 1, stream all_gather: waits for classes [0] in call 0 of communicator 0" in message
    assert "class 1, stream compute: waits for call 0" in message
    assert "class 1, stream reduce: waits for compute item 1" in message
    assert "class 0" not in message


def test_a_message_that_nobody_sends_is_told() -> None:
    receiver = track([item(1, wait_for=0)], {Stream.RECEIVE: [call(0, 5, Stream.RECEIVE, layer=3)]})
    assert "class 0, stream receive: waits for message (lane, layer, handle, microbatch) (0, 3, 0, 0)" in told(
        [receiver], Wires())


def test_a_link_that_is_never_given_back_is_told() -> None:
    """Its call waits for class 0 for good; the other stream of the rank waits for the link."""
    calls = {GATHER: [call(0, 5, GATHER)], REDUCE: [call(1, 5, REDUCE, comm=0)]}
    message = told([track([item(1)]), track([item(1)], calls)], Missed())
    assert "class 1, stream reduce: waits for a link that another stream has taken" in message


def test_calls_in_unlike_order_are_told() -> None:
    """Each of two ranks waits in its first call for the other."""
    def one(first: int, second: int) -> RankStreams:
        return track([item(1, call=call(0, 4, Stream.COMPUTE, serial=first)),
                      item(1, call=call(1, 4, Stream.COMPUTE, serial=second))])

    message = told([one(0, 1), one(1, 0)], Wires(together=(0, 1)))
    assert "class 0, stream compute: waits for classes [1] in call 0 of communicator 0" in message
    assert "class 1, stream compute: waits for classes [0] in call 1 of communicator 0" in message
