"""Spans of a report as slices for tools: those of one thread never overlap, times are whole nanoseconds.

On the page, waiting is drawn over the kernels in whose midst it falls. Here it is cut out of them: the thread
`compute` is busy when the device is, `waits` says what it waits for meanwhile, and both together fill the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from simcore.detail import ClassDetail, Span
from simcore.report import RankReport, Report
from viz.lanes import WAITS

__all__ = ["THREADS", "Process", "Slice", "left_out", "processes"]

THREADS: Final = ("compute", "waits", "in_layers", "all_gather", "reduce", "all_reduce", "send", "receive", "copy")
"""In the order in which they are shown; all but the first two are lanes of `detail.Span`."""
_MOST: Final = 128
"""Classes of ranks that are written out."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a span, from `start` to `end` in ns."""

    span: Span
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Process:
    """A class of ranks: `number` is its first rank, which stands for all of `rank.ranks`."""

    number: int
    rank: RankReport
    threads: dict[str, tuple[Slice, ...]]


def processes(report: Report) -> list[Process]:
    """The classes that have a timeline; of very many the first."""
    if report.detail is None:
        return []
    pairs = zip(report.ranks, report.detail.classes, strict=True)
    timed = [(rank, detail) for rank, detail in pairs if detail.spans]
    return [Process(int(rank.ranks[0].partition("-")[0]), rank, _threads(detail)) for rank, detail in timed[:_MOST]]


def left_out(report: Report) -> list[str]:
    """A line for each thing of the step that is not among the slices."""
    detail = report.detail
    if detail is None:
        return []
    told = []
    if report.time is not None and detail.end_s is not None and detail.written_out < detail.num_microbatches:
        told.append(f"{detail.written_out:,} of {detail.num_microbatches:,} microbatches are written out, "
                    f"{detail.end_s:.9f} s of a step of {report.time.step_s:.9f} s: the others repeat steady ones")
    if joined := sum(span.count - 1 for one in detail.classes for span in one.spans):
        told.append(f"{joined:,} spans are drawn together with a neighbour of their kind, too short to be told apart")
    timed = sum(bool(one.spans) for one in detail.classes)
    if timed > _MOST:
        told.append(f"{_MOST} of {timed:,} classes of ranks are written out")
    return told


def _threads(detail: ClassDetail) -> dict[str, tuple[Slice, ...]]:
    lanes: dict[str, list[Span]] = {name: [] for name in THREADS}
    for span in detail.spans:
        lanes[span.lane].append(span)
    whole = list(_apart(lanes["compute"]))
    made = {lane: tuple(_apart(spans)) for lane, spans in lanes.items()}
    made["compute"] = tuple(piece for piece in whole if piece.span.kind not in WAITS)
    made["waits"] = tuple(piece for piece in whole if piece.span.kind in WAITS)
    return {name: pieces for name, pieces in made.items() if pieces}


def _apart(spans: Iterable[Span]) -> Iterator[Slice]:
    """Pieces in order, none over another: what starts later covers what it falls into."""
    bars = sorted((Slice(span, round(span.start_s * 1e9), round(span.end_s * 1e9)) for span in spans),
                  key=lambda bar: (bar.start, -bar.end))
    under: list[Slice] = []
    now = 0
    for bar in bars:
        yield from _closed(under, now, bar.start)
        under.append(bar)
        now = bar.start
    yield from _closed(under, now, max((bar.end for bar in bars), default=0))


def _closed(under: list[Slice], now: int, until: int) -> Iterator[Slice]:
    """What is seen between two moments; the topmost is the last. What has ended is taken away."""
    while under and now < until:
        top = under[-1]
        end = min(top.end, until)
        if end > now:
            yield Slice(top.span, now, end)
            now = end
        if top.end <= until:
            under.pop()
