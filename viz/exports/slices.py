"""Spans of a report as slices for tools: those of one thread never overlap, times are whole nanoseconds.

On the page, waiting is drawn over the kernels in whose midst it falls. Here it is cut out of them: the thread
`compute` is busy when the device is, `waits` says what it waits for meanwhile, and both together fill the step. The
thread `step` alone is nested: the whole step, and in it the passes of microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.results.detail import ClassDetail, Span
from simcore.results.report import RankReport, Report
from viz.charts.lanes import WAITS

__all__ = ["THREADS", "Process", "Slice", "left_out", "plain", "processes"]

THREADS: Final = {"step": "step", "compute": "compute", "waits": "waits", "in_layers": "collectives in layers",
                  "all_gather": "all-gather", "reduce": "reduce", "all_reduce": "all-reduce", "send": "send",
                  "receive": "receive", "copy": "copy"}
"""Their names to show, in that order; all but the first three are lanes of `detail.Span`."""
_MOST: Final = 128
"""Classes of ranks that are written out."""
_RUNS: Final = 8
"""Runs of ranks that a name has."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Something from `start` to `end`, in ns; a piece of `span`, if it is of one."""

    name: str
    start: int
    end: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A class of ranks: `number` is its first rank, which stands for all of `rank.ranks`."""

    number: int
    rank: RankReport
    threads: dict[str, tuple[Slice, ...]]

    @property
    def name(self) -> str:
        """The rank, and for whom it stands; of very many runs of ranks the first."""
        runs = self.rank.ranks
        more = f" and {len(runs) - _RUNS:,} runs more" if len(runs) > _RUNS else ""
        others = f", stands for {', '.join(runs[:_RUNS])}{more}" if self.rank.num_ranks > 1 else ""
        return f"rank {self.number}{others}"


def processes(report: Report, ranks: Sequence[int] = ()) -> list[Process]:
    """The classes that have something over time, of very many the first; or of each of `ranks` its class."""
    timed = _timed(report)
    asked = [(_members(rank)[0].start, rank, detail) for rank, detail in timed[:_MOST]] if not ranks else [
        (number, rank, detail) for number in sorted(set(ranks)) for rank, detail in timed
        if any(number in members for members in _members(rank))]
    return [Process(number, rank, _threads(report, detail)) for number, rank, detail in asked]


def left_out(report: Report, ranks: Sequence[int] = ()) -> list[str]:
    """A line for each thing of the step that is not among the slices; of `ranks` it is known who was asked for."""
    told, detail = [], report.detail
    if detail is not None and report.time is not None and detail.written_out < detail.num_microbatches:
        told.append(f"{detail.written_out:,} of {detail.num_microbatches:,} microbatches are written out, "
                    f"{detail.end_s or 0:.9f} s of a step of {report.time.step_s:.9f} s: the others repeat steady ones")
    spans = [] if detail is None else [span for one in detail.classes for span in one.spans]
    if joined := sum(span.count - 1 for span in spans):
        told.append(f"{joined:,} of {joined + len(spans):,} spans are drawn together with a neighbour of their kind: "
                    "too short to be told apart")
    if (timed := len(_timed(report))) > _MOST and not ranks:
        told.append(f"{_MOST} of {timed:,} classes of ranks are written out")
    return told


def plain(text: str) -> str:
    """Without control characters and the like: each becomes its escape in Python's spelling."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _timed(report: Report) -> list[tuple[RankReport, ClassDetail]]:
    """Classes of ranks that do something over time."""
    if report.detail is None:
        return [(rank, ClassDetail()) for rank in report.ranks if report.phases]
    return [pair for pair in zip(report.ranks, report.detail.classes, strict=True) if pair[1].spans]


def _members(rank: RankReport) -> list[range]:
    """Of texts such as `5`, `0-3` and `0-62:2`."""
    found = []
    for text in rank.ranks:
        run, _, step = text.partition(":")
        first, _, last = run.partition("-")
        found.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def _phases(report: Report) -> Iterator[Slice]:
    """All ranks pass them together: who has nothing to do in one waits."""
    for phase in report.phases:
        start = round(phase.start_s * 1e9)
        yield Slice(phase.phase, start, start + round(phase.seconds * 1e9))


def _once_ns(report: Report) -> int:
    """What the host does once a step, behind all that the timeline has."""
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
    made = {lane: tuple(_apart(lanes.get(lane, ()))) for lane in THREADS}
    device = made["compute"]
    last = (Slice(WAITS["host"], end, end + once),) if once else ()
    made["compute"] = tuple(piece for piece in device if piece.span and piece.span.kind not in WAITS)
    made["waits"] = (*(piece for piece in device if piece.span and piece.span.kind in WAITS), *last)
    made["step"] = (Slice("step", 0, end + once), *_passes(made["compute"]))
    return {name: pieces for name, pieces in made.items() if pieces}


def _passes(kernels: Sequence[Slice]) -> Iterator[Slice]:
    """Of microbatches, one after another, with what they wait for in their midst."""
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


def _apart(spans: Iterable[Span]) -> Iterator[Slice]:
    """Pieces in order, none over another: what starts later covers what it falls into."""
    bars = sorted((Slice(_name(span), round(span.start_s * 1e9), round(span.end_s * 1e9), span) for span in spans),
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
            yield Slice(top.name, now, end, top.span)
            now = end
        if top.end <= until:
            under.pop()
        else:
            under[-1] = replace(top, span=_rest(top.span))


def _rest(span: Span | None) -> Span | None:
    """Of a span whose first piece has told all that is to be counted once."""
    if span is None or not (span.bytes or span.exposed_s or span.meets or span.count > 1):
        return span
    return span.model_copy(update={"bytes": 0, "exposed_s": 0.0, "meets": "", "count": 1})


def _name(span: Span) -> str:
    if span.kind in WAITS:
        return WAITS[span.kind]
    return plain(f"{span.kind} {span.label}".rstrip())
