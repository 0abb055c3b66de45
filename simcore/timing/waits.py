"""Waits of one rank's kernels, by the call that is waited for, and the time of each call beside kernels.

[Note: exposed and hidden]
Kernels wait for one call, but calls of a stream or link run one after another: the time before the awaited call begins
is exposed of the calls that run in it. Time in which none runs (other ranks join late) is of the awaited call. A call
is hidden as long as kernels run; while they wait for the host, or for another call beside it, it is neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.recording.tape import Stream
from simcore.timing.streams import RankStreams
from simcore.timing.timeline import ClassTimes

__all__ = ["Waits"]

_RECEIVE = int(Stream.RECEIVE)
_NOT_SHARED = (int(Stream.COMPUTE), int(Stream.SEND), _RECEIVE)
"""Streams whose calls have all of their waits, and no others."""


class Waits:
    """Waiting of the compute stream: `waited` ns at each item, `exposed` the part of it due to communication.

    `of_call`: exposed ns by call. `trailing`: ns for which the last call runs after the compute stream has ended.
    `often`: how often each call happens in the step; a wait is divided among calls that happen equally often.
    """

    def __init__(self, track: RankStreams, times: ClassTimes, often: IntArray) -> None:
        self.waited = np.array(times.waited_at, dtype=np.int64)
        self.exposed = self.waited.copy()
        self.of_call = np.zeros(len(track.call_ns), dtype=np.int64)
        self._ends = np.array(times.item_ends, dtype=np.int64)
        self._kernels = np.array(track.item_ns, dtype=np.int64)
        self._dates = {call.number: (call.stream, start, end) for call, start, end in times.calls}
        self._lanes = _lanes(times)
        self._often = often
        places, numbers = track.skeleton.awaited
        is_received = np.zeros(len(track.call_ns), dtype=np.bool_)
        is_received[[call.number for call in track.skeleton.calls.get(_RECEIVE, ())]] = True
        messages = places[is_received[numbers]]
        lengths = np.array(track.call_ns, dtype=np.int64)[numbers[is_received[numbers]]]
        self.exposed[messages] = np.minimum(self.waited[messages], lengths)
        shared = np.ones(len(track.call_ns), dtype=np.bool_)
        begins = np.zeros(len(track.call_ns), dtype=np.int64)
        for call, start, _ in times.calls:
            shared[call.number], begins[call.number] = call.stream not in _NOT_SHARED, start
        ends, exposed = self._ends[places], self.exposed[places]
        divided = shared[numbers] & (begins[numbers] > ends - exposed)
        np.add.at(self.of_call, numbers[~divided], exposed[~divided])
        for number, end, ns in np.stack([numbers, ends, exposed])[:, divided].T.tolist():
            self._divide(number, end, ns)
        self.trailing = times.end - (times.item_ends[-1] if times.item_ends else 0)
        if self.trailing:
            last, _, _ = max(times.calls, key=lambda timed: timed[2])
            self._divide(last.number, times.end, self.trailing)

    def hidden(self, alone: IntArray) -> IntArray:
        """Hidden ns by call, at most what is not exposed of `alone`, their ns without contention."""
        most: IntArray = np.maximum(alone - self.of_call, 0)
        shared = [(number, start, end) for number, (stream, start, end) in self._dates.items()
                  if stream not in _NOT_SHARED]
        if not shared or not len(self._ends):
            return most
        numbers, starts, ends = np.array(shared, dtype=np.int64).T
        stops = self._ends - self.waited
        dates = np.stack([stops - self._kernels, stops], axis=1).ravel()
        busy = np.stack([np.cumsum(self._kernels) - self._kernels, np.cumsum(self._kernels)], axis=1).ravel()
        beside = np.rint(np.interp(ends, dates, busy) - np.interp(starts, dates, busy)).astype(np.int64)
        most[numbers] = np.minimum(most[numbers], beside)
        return most

    def _divide(self, number: int, end: int, ns: int) -> None:
        """Adds a wait of `ns` until `end` for the call `number` to the calls that run in it."""
        stream, start, _ = self._dates[number]
        begin = end - ns
        if stream not in _NOT_SHARED and start > begin:
            for other, free in self._running(number, begin, min(start, end)):
                self.of_call[other] += free
                ns -= free
        self.of_call[number] += ns

    def _running(self, number: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """(call, ns) of the calls that run from `begin` to `end`; of several at one time the first to begin."""
        found = []
        for starts, ends, numbers in self._lanes:
            at = bisect_right(ends, begin)
            while at < len(starts) and starts[at] < end:
                if self._often[numbers[at]] == self._often[number]:
                    found.append((starts[at], ends[at], numbers[at]))
                at += 1
        for first, last, other in sorted(found):
            free = min(last, end) - max(first, begin)
            if free > 0:
                yield other, free
                begin = min(last, end)


def _lanes(times: ClassTimes) -> list[tuple[list[int], list[int], list[int]]]:
    """(starts, ends, numbers) of the calls of each stream whose calls wait for each other, in order."""
    lanes: dict[int, tuple[list[int], list[int], list[int]]] = {}
    for call, start, end in times.calls:
        if call.stream not in _NOT_SHARED:
            starts, ends, numbers = lanes.setdefault(call.stream, ([], [], []))
            starts.append(start)
            ends.append(end)
            numbers.append(call.number)
    return list(lanes.values())
