"""What the streams of one class of ranks do, and when: a timeline for people to look at.

Comes in: a program that was run on the timeline. Goes out: `Span`s by lane, no more than a page can bear.

[Note: where waiting is drawn]
The timeline knows of each item of the compute stream how long its kernels waited for the host, and how long it waited
behind them for a call. The first is drawn before the kernels, the second behind them, as `Clocked.row_ns` has them; of
waiting for a message from another stage, what is longer than the message is a bubble (see `breakdown`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from simcore.detail import Span
from simcore.mesh import IntArray
from simcore.outline import Phase
from simcore.program import Program
from simcore.streams import Track
from simcore.tape import Stream
from simcore.timeline import ClassTimes

__all__ = ["MAX_SPANS", "spans"]

MAX_SPANS: Final = 2400
"""Of one lane. Beyond, neighbours of one kind that are too short to be seen apart are drawn together."""

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


def spans(program: Program, track: Track, times: ClassTimes, row_ns: IntArray) -> tuple[Span, ...]:
    """All lanes, the compute lane first."""
    last = times.end
    lanes = {"compute": [*_kernels(program, row_ns), *_waits(track, times)]}
    exposed = _exposed(track, times)
    for call, start, end in times.calls:
        kind, axis, _ = list(program.tables.comms)[call.comm]
        bar = _Bar(kind, axis, start, end, min(exposed.get(call.number, 0), end - start), call.microbatch)
        lanes.setdefault(_LANES[Stream(call.stream)], []).append(bar)
    return tuple(Span(lane=lane, kind=bar.kind, label=bar.label, start_s=bar.start / 1e9, end_s=bar.end / 1e9,
                      exposed_s=bar.exposed / 1e9, microbatch=bar.microbatch, count=bar.count)
                 for lane, bars in lanes.items() for bar in _thinned(bars, last))


def _kernels(program: Program, row_ns: IntArray) -> Iterator[_Bar]:
    """Stretches of kernels of one phase, layer and microbatch. What waits inside is drawn over them."""
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


def _waits(track: Track, times: ClassTimes) -> Iterator[_Bar]:
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


def _exposed(track: Track, times: ClassTimes) -> dict[int, int]:
    """By call, ns for which the compute stream waited for it, at its end."""
    found = {}
    for item, waited in zip(track.skeleton.items, times.waited_at, strict=True):
        number = item.call.number if item.call is not None else item.wait_for
        if number >= 0 and waited:
            found[number] = waited
    last = times.item_ends[-1] if times.item_ends else 0
    return found | {call.number: end - max(start, last) for call, start, end in times.calls if end > last}


def _thinned(bars: Iterable[_Bar], last: int) -> list[_Bar]:
    """In order of their start; the least width is doubled until there are few enough."""
    kept = sorted(bars, key=lambda bar: (bar.start, bar.end))
    width = max(1, last // 8000)
    while len(kept) > MAX_SPANS:
        kept = _joined(kept, width)
        width *= 2
    return kept


def _joined(bars: Iterable[_Bar], width: int) -> list[_Bar]:
    """Neighbours of one kind become one where all of them are shorter than `width`, and so are the gaps."""
    made: list[_Bar] = []
    latest: dict[str, int] = {}
    for bar in bars:
        at = latest.get(bar.kind)
        before = made[at] if at is not None else None
        if (before is not None and at is not None and bar.end - before.start <= width
                and bar.start - before.end <= width):
            made[at] = replace(before, label=before.label if before.label == bar.label else "", end=max(
                bar.end, before.end), exposed=before.exposed + bar.exposed, count=before.count + bar.count)
        else:
            latest[bar.kind] = len(made)
            made.append(bar)
    return made
