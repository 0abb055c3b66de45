"""Spans of the streams of one class of ranks, for drawings of the timeline.

Input: a program that was run on the timeline. Output: `Span`s by lane, at most as many as a page can hold.

[Note: where waiting is drawn]
For each item of the compute stream the timeline has the time that its kernels waited for the host, and the time after
them that it waited for a call. The first is drawn before the kernels, the second after them, as in `StepTiming.row_ns`;
the part of waiting for another stage's message that exceeds the message is a bubble (see `breakdown`). A message is
drawn while it travels, not from the time when the receiver was ready.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT
from simcore.recording.tape import Stream
from simcore.results.detail import Span
from simcore.timing.dependencies import CollectiveCall
from simcore.timing.streams import RankStreams
from simcore.timing.timeline import ClassTimes

__all__ = ["MAX_SPANS", "spans"]

MAX_SPANS: Final = 12_000
"""Spans of all classes. Above it, adjacent spans of one kind that are too short to be distinguished are merged."""

_LANES: Final = {Stream.COMPUTE: "in_layers", Stream.ALL_GATHER: "all_gather", Stream.REDUCE: "reduce",
                 Stream.ALL_REDUCE: "all_reduce", Stream.SEND: "send", Stream.RECEIVE: "receive", Stream.COPY: "copy"}


@dataclass(frozen=True, slots=True)
class _Bar:
    """A span in ns."""

    kind: str
    label: str
    start: int
    end: int
    exposed: int = 0
    microbatch: int = 0
    count: int = 1
    layer: str = ""
    bytes: int = 0
    dtype: str = ""
    meets: str = ""


def spans(program: Program, track: RankStreams, times: ClassTimes, row_ns: IntArray, most: int,
          meets: Callable[[CollectiveCall], str]) -> tuple[Span, ...]:
    """Spans (bars of a drawing) of all streams of one rank, for one class of ranks (with the same program).

    Those of the compute stream come first, then stream by stream, each in order of start. Adjacent short ones are
    merged until there are at most `most`. `row_ns`: time in ns when the compute stream had done each row of the
    program; `meets(call)`: text that marks the call in all classes that take part, "" if only one does.
    """
    waits = list(_waits(track, times))
    lanes: dict[str, list[_Bar]] = {"compute": [*_beside(_kernels(program, row_ns), waits), *waits]}
    lanes |= {lane: [] for stream, lane in _LANES.items() if any(c.stream == stream for c, _, _ in times.calls)}
    for stream, bar in _calls(program, track, times, meets):
        lanes[_LANES[stream]].append(bar)
    return tuple(Span(lane=lane, kind=bar.kind, label=bar.label, start_s=bar.start / 1e9, end_s=bar.end / 1e9,
                      exposed_s=bar.exposed / 1e9, microbatch=bar.microbatch, count=bar.count, layer=bar.layer,
                      bytes=bar.bytes, dtype=bar.dtype, meets=bar.meets)
                 for lane, bars in _thinned(lanes, most, times.end).items() for bar in bars)


def _calls(program: Program, track: RankStreams, times: ClassTimes, meets: Callable[[CollectiveCall], str]
           ) -> Iterator[tuple[Stream, _Bar]]:
    exposed, comms, paths = _exposed(track, times), list(program.tables.comms), program.layer_paths
    payloads = program.distinct[program.places[track.skeleton.call_rows], AMOUNT].tolist()
    for call, start, end in times.calls:
        kind, axis, dtype = comms[call.comm]
        sent = max(start, end - track.call_ns[call.number]) if call.stream == Stream.RECEIVE else start
        layer = paths[call.layer] if 0 <= call.layer < len(paths) else ""
        yield Stream(call.stream), _Bar(
            kind, axis, sent, end, min(exposed.get(call.number, 0), end - sent), call.microbatch, 1, layer,
            payloads[call.number], dtype, meets(call))


def _kernels(program: Program, row_ns: IntArray) -> Iterator[_Bar]:
    """Spans of kernels of one phase, layer and microbatch. Waiting inside is drawn over them."""
    outline = program.outline
    layer = np.where(outline.spread(0) < 0, -1, outline.spread(3))
    marks = np.stack([outline.phase, layer, outline.microbatch])
    changes = np.flatnonzero((np.diff(marks, axis=1) != 0).any(axis=0)) + 1
    for first, end in pairwise([0, *changes.tolist(), marks.shape[1]]):
        start, stop = int(row_ns[first - 1]) if first else 0, int(row_ns[end - 1])
        phase, at, microbatch = marks[:, first].tolist()
        if stop > start:
            label = program.layer_paths[at] if 0 <= at < len(program.layer_paths) else ""
            yield _Bar(Phase(phase).name.lower(), label, start, stop, 0, microbatch)


def _beside(bars: Iterable[_Bar], waits: Sequence[_Bar]) -> Iterator[_Bar]:
    """Spans without the waiting at their ends; waiting inside is drawn over them."""
    starts, ends = [wait.start for wait in waits], {wait.end: wait.start for wait in waits}
    for bar in bars:
        start, end = bar.start, bar.end
        while (at := bisect_right(starts, start) - 1) >= 0 and waits[at].end > start:
            start = waits[at].end
        while end in ends and end > start:
            end = ends[end]
        if end > start:
            yield bar if (start, end) == (bar.start, bar.end) else replace(bar, start=start, end=end)


def _waits(track: RankStreams, times: ClassTimes) -> Iterator[_Bar]:
    received = {call.number for call in track.skeleton.calls.get(int(Stream.RECEIVE), ())}
    before = 0
    for item, end, waited, idle in zip(track.skeleton.items, times.item_ends, times.waited_at, times.idle_at,
                                       strict=True):
        if idle:
            yield _Bar("host", "", before, before + idle)
        number = item.call.number if item.call is not None else item.wait_for
        bubble = max(0, waited - track.call_ns[number]) if number in received else 0
        if bubble:
            yield _Bar("bubble", "", end - waited, end - waited + bubble)
        if waited > bubble:
            yield _Bar("communication", "", end - waited + bubble, end)
        before = end
    if times.end > before:
        yield _Bar("communication", "", before, times.end)


def _exposed(track: RankStreams, times: ClassTimes) -> dict[int, int]:
    """Time in ns that the compute stream waited for each call, at its end."""
    exposed = {}
    for item, waited in zip(track.skeleton.items, times.waited_at, strict=True):
        number = item.call.number if item.call is not None else item.wait_for
        if number >= 0 and waited:
            exposed[number] = waited
    last = times.item_ends[-1] if times.item_ends else 0
    return exposed | {call.number: end - max(start, last) for call, start, end in times.calls if end > last}


def _thinned(lanes: Mapping[str, list[_Bar]], most: int, last: int) -> dict[str, list[_Bar]]:
    """Bars by lane in order of start; the minimum width is doubled until they are at most `most`."""
    kept = {lane: sorted(bars, key=lambda bar: (bar.start, bar.end)) for lane, bars in lanes.items()}
    width = max(1, last // 8000)
    while sum(map(len, kept.values())) > most and width < last:
        kept = {lane: _joined(bars, width) for lane, bars in kept.items()}
        width *= 2
    return kept


def _joined(bars: Iterable[_Bar], width: int) -> list[_Bar]:
    """Bars in which adjacent ones of one kind are merged if all of them, and the gaps, are shorter than `width`."""
    merged: list[_Bar] = []
    latest: dict[str, int] = {}
    for bar in bars:
        at = latest.get(bar.kind)
        before = merged[at] if at is not None else None
        if (before is not None and at is not None and bar.end - before.start <= width
                and bar.start - before.end <= width):
            merged[at] = _both(before, bar)
        else:
            latest[bar.kind] = len(merged)
            merged.append(bar)
    return merged


def _both(first: _Bar, second: _Bar) -> _Bar:
    """Two bars as one, with the fields that they have in common."""
    label, layer, dtype = (a if a == b else "" for a, b in (
        (first.label, second.label), (first.layer, second.layer), (first.dtype, second.dtype)))
    return _Bar(first.kind, label, first.start, max(first.end, second.end), first.exposed + second.exposed,
                first.microbatch, first.count + second.count, layer, first.bytes + second.bytes, dtype)
