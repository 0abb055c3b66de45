"""Spans of a report as slices for traces: slices of one thread never overlap, times are whole nanoseconds.

A page draws waits over the kernels during which they occur. Here they are cut out of the kernels: the thread `compute`
has what the device executes, `waits` has what it waits for, and both together fill the step. Only the thread `step` is
nested: the whole step, and in it the passes of microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simcore.results.detail import ClassDetail, Span
from simcore.results.report import RankReport, Report
from viz.charts.lanes import WAITS

__all__ = ["THREADS", "Process", "Slice", "in_us", "left_out", "plain", "processes"]

THREADS: Final = {"step": "step", "compute": "compute", "waits": "waits", "in_layers": "collectives in layers",
                  "all_gather": "all-gather", "reduce": "reduce", "all_reduce": "all-reduce", "send": "send",
                  "receive": "receive", "copy": "copy"}
"""Names of the threads as they are shown, in this order; all but the first three are lanes of `detail.Span`."""
_MOST: Final = 128
"""Most classes of ranks that are written out."""
_RUNS: Final = 8
"""Most runs of ranks in the name of a process."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One named interval of a trace from `start` to `end`, in ns since the step began.

    `span`: the report's span that it is part of; None for a step or a pass.
    """

    name: str
    start: int
    end: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """One class of ranks in a trace: `number` is the rank that represents all of `rank.ranks`.

    `threads`: slices in order of time, by the thread's name (see `THREADS`).
    """

    number: int
    rank: RankReport
    threads: dict[str, tuple[Slice, ...]]

    @property
    def name(self) -> str:
        """Name in the trace: the rank, the first eight runs of ranks that it represents, and how many more."""
        runs = self.rank.ranks
        more = f" and {len(runs) - _RUNS:,} runs more" if len(runs) > _RUNS else ""
        others = f", stands for {', '.join(runs[:_RUNS])}{more}" if self.rank.num_ranks > 1 else ""
        return f"rank {self.number}{others}"


def processes(report: Report, ranks: Sequence[int] = ()) -> list[Process]:
    """Returns the processes of a trace: one for each class of ranks with a timeline, at most 128.

    With `ranks`, one for each of these ranks that has a timeline, in ascending order.
    """
    timed = _timed(report)
    chosen = [(_members(rank)[0].start, rank, detail) for rank, detail in timed[:_MOST]] if not ranks else [
        (number, rank, detail) for number in sorted(set(ranks)) for rank, detail in timed
        if any(number in members for members in _members(rank))]
    return [Process(number, rank, _threads(report, detail)) for number, rank, detail in chosen]


def left_out(report: Report, ranks: Sequence[int] = ()) -> list[str]:
    """Returns a line of text for each way in which a trace has less than the step: microbatches, spans, classes.

    With `ranks`, classes that were not asked for are not mentioned.
    """
    lines, detail = [], report.detail
    if detail is not None and report.time is not None and detail.written_out < detail.num_microbatches:
        lines.append(f"{detail.written_out:,} of {detail.num_microbatches:,} microbatches are written out, "
                     f"{detail.end_s or 0:.9f} s of a step of {report.time.step_s:.9f} s: the others repeat steady "
                     "ones")
    spans = [] if detail is None else [span for ranks_detail in detail.classes for span in ranks_detail.spans]
    if joined := sum(span.count - 1 for span in spans):
        lines.append(f"{joined:,} of {joined + len(spans):,} spans are drawn together with a neighbour of their kind: "
                     "too short to be told apart")
    if (timed := len(_timed(report))) > _MOST and not ranks:
        lines.append(f"{_MOST} of {timed:,} classes of ranks are written out")
    return lines


def plain(text: str) -> str:
    """Returns `text` with each character that is not printable replaced by Python's escape for it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _timed(report: Report) -> list[tuple[RankReport, ClassDetail]]:
    """Returns the classes of ranks that have spans; for reinforcement learning all, as its phases are of all ranks."""
    if report.detail is None:
        return [(rank, ClassDetail()) for rank in report.ranks if report.phases]
    return [pair for pair in zip(report.ranks, report.detail.classes, strict=True) if pair[1].spans]


def _members(rank: RankReport) -> list[range]:
    """Reads runs of ranks such as `5`, `0-3` and `0-62:2`."""
    runs = []
    for text in rank.ranks:
        bounds, _, step = text.partition(":")
        first, _, last = bounds.partition("-")
        runs.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return runs


def _phases(report: Report) -> Iterator[Slice]:
    """Yields the phases of reinforcement learning, which all ranks enter together: a rank without work in one waits."""
    for phase in report.phases:
        start = round(phase.start_s * 1e9)
        yield Slice(phase.phase, start, start + round(phase.seconds * 1e9))


def _once_ns(report: Report) -> int:
    """Returns the time in ns that the host takes once a step, after the end of the timeline."""
    detail, time = report.detail, report.time
    if detail is None or time is None or detail.end_s is None or detail.written_out < detail.num_microbatches:
        return 0
    return round(time.step_s * 1e9) - round(detail.end_s * 1e9)


def _threads(report: Report, ranks: ClassDetail) -> dict[str, tuple[Slice, ...]]:
    if report.detail is None:
        return {"step": tuple(_phases(report))}
    end, once = round((report.detail.end_s or 0) * 1e9), _once_ns(report)
    lanes: dict[str, list[Span]] = {}
    for span in ranks.spans:
        lanes.setdefault(span.lane, []).append(span)
    slices = {lane: tuple(_without_overlaps(lanes.get(lane, ()))) for lane in THREADS}
    device = slices["compute"]
    last = (Slice(WAITS["host"], end, end + once),) if once else ()
    slices["compute"] = tuple(piece for piece in device if piece.span and piece.span.kind not in WAITS)
    slices["waits"] = (*(piece for piece in device if piece.span and piece.span.kind in WAITS), *last)
    slices["step"] = (Slice("step", 0, end + once), *_passes(slices["compute"]))
    return {name: pieces for name, pieces in slices.items() if pieces}


def _passes(kernels: Sequence[Slice]) -> Iterator[Slice]:
    """Yields the passes of microbatches in order, each including the waits inside it."""
    latest: Slice | None = None
    for piece in kernels:
        assert piece.span is not None
        kind = {"loss": "forward", "recompute": "backward"}.get(piece.span.kind, piece.span.kind)
        name = kind if kind == "optimizer" else f"{kind} {piece.span.microbatch}"
        if latest is not None and latest.name == name:
            latest = replace(latest, end=piece.end)
            continue
        if latest is not None:
            yield latest
        latest = Slice(name, piece.start, piece.end)
    if latest is not None:
        yield latest


def _without_overlaps(spans: Iterable[Span]) -> Iterator[Slice]:
    """Yields pieces in order without overlaps: a span that starts later covers the one in which it starts."""
    bars = sorted((Slice(_name(span), round(span.start_s * 1e9), round(span.end_s * 1e9), span) for span in spans),
                  key=lambda bar: (bar.start, -bar.end))
    open_spans: list[Slice] = []
    now = 0
    for bar in bars:
        yield from _visible(open_spans, now, bar.start)
        open_spans.append(bar)
        now = bar.start
    yield from _visible(open_spans, now, max((bar.end for bar in bars), default=0))


def _visible(open_spans: list[Slice], now: int, until: int) -> Iterator[Slice]:
    """Yields the pieces between two times; the last open span covers the others. Removes spans that have ended."""
    while open_spans and now < until:
        top = open_spans[-1]
        end = min(top.end, until)
        if end > now:
            yield Slice(top.name, now, end, top.span)
            now = end
        if top.end <= until:
            open_spans.pop()
        else:
            open_spans[-1] = replace(top, span=_without_totals(top.span))


def in_us(event: dict[str, Any]) -> dict[str, Any]:
    """Converts the times of an event from ns to us."""
    return event | {key: event[key] / 1000 for key in ("ts", "dur") if key in event}


def _without_totals(span: Span | None) -> Span | None:
    """Returns the span for its later pieces: bytes, exposed seconds and counts belong to its first piece only."""
    if span is None or not (span.bytes or span.exposed_s or span.meets or span.count > 1):
        return span
    return span.model_copy(update={"bytes": 0, "exposed_s": 0.0, "meets": "", "count": 1})


def _name(span: Span) -> str:
    if span.kind in WAITS:
        return WAITS[span.kind]
    return plain(f"{span.kind} {span.label}".rstrip())
