"""Streams over time: for each class of ranks a lane of kernels and lanes of collectives, with waits marked.

Positions of spans are percentages of the width, so that a wider frame zooms without stretching text or textures. The
names of the lanes are a drawing of their own, `lane_names`, which stays in place when the frame is scrolled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.results.detail import ClassDetail, Span
from simcore.results.report import RankReport, Report
from simcore.units import format_seconds
from viz.charts.axes import phase_class
from viz.charts.legend import LegendEntry
from viz.charts.stack import ticks
from viz.markup import Markup, element, number

__all__ = ["drawn_classes", "lane_entries", "lane_names", "lanes"]

HEAD: Final = 24
LANE: Final = 22
_FOOT: Final = 30
_MOST: Final = 8
"""Most classes of ranks that are drawn."""
_TITLED: Final = 0.0012
"""Least share of the step at which a span has a title."""
_THIN: Final = 0.004
"""Share of the step below which a texture would not be visible and a plain colour is used."""
WAITS: Final = {"communication": "waiting for communication (exposed)", "bubble": "waiting for another stage (bubble)",
                "host": "waiting for the host"}
_PASS_OF: Final = {"forward": "F", "loss": "F", "backward": "B", "recompute": "B", "optimizer": "opt"}
_NAMED: Final = 0.024
"""Least share of the frame at which a pass is labelled."""
_PHASES: Final = ("forward", "loss", "backward", "recompute", "optimizer")


def drawn_classes(report: Report) -> list[tuple[RankReport, ClassDetail]]:
    """Returns the classes of ranks that are drawn over time, with their details; empty without a timeline.

    All that have a timeline; of more than eight the first four, the last three, and the fullest.
    """
    if report.detail is None:
        return []
    timed = [pair for pair in zip(report.ranks, report.detail.classes, strict=True) if pair[1].spans]
    if len(timed) <= _MOST:
        return timed
    chosen = {id(pair[0]): pair for pair in (*timed[: _MOST // 2], *timed[-(_MOST // 2 - 1) :])}
    fullest = [pair for pair in timed if pair[0] is report.peak_rank]
    return list((chosen | {id(pair[0]): pair for pair in fullest}).values())


def lane_names(report: Report) -> Markup:
    """Draws the names of all lanes (streams of a class of ranks), at the heights that `lanes` uses."""
    texts, top = [], 0
    for rank, detail in drawn_classes(report):
        words = f"ranks {', '.join(rank.ranks)}" if rank.num_ranks > 1 else f"rank {', '.join(rank.ranks)}"
        texts.append(element("text", words, x="0", y=top + 16, class_="lane-head"))
        for n, lane in enumerate(_lane_names(detail)):
            texts.append(element("text", lane.replace("_", " "), x="0", y=top + HEAD + n * LANE + 14,
                                 class_="lane-name"))
        top += _height(detail)
    return element("svg", *texts, class_="chart", width="100%", height=top + _FOOT, aria_hidden="true")


def lanes(report: Report, identity: str, until_s: float | None = None) -> Markup | None:
    """Draws over time the streams of each class of ranks, one lane a stream; None without a timeline.

    `identity`: begin of the ids in it, unique on the page. `until_s`: end of the frame in s, where two reports are
    compared; None: the end of this step.
    """
    classes = drawn_classes(report)
    if report.detail is None or not classes:
        return None
    frame_s = until_s or report.detail.end_s or 1e-9
    parts, top = [], 0
    for _, detail in classes:
        parts.append(_class(detail, top, frame_s))
        top += _height(detail)
    title = "Streams over one step"
    words = "; ".join(f"ranks {', '.join(rank.ranks)}: {_sums(detail)}" for rank, detail in classes)
    return element(
        "svg", element("title", title, id=f"{identity}-title"), element("desc", words, id=f"{identity}-desc"),
        _grid(frame_s, top), *parts, class_="chart lanes", role="img", width="100%", height=top + _FOOT,
        aria_labelledby=f"{identity}-title", aria_describedby=f"{identity}-desc")


def _height(detail: ClassDetail) -> int:
    return HEAD + LANE * len(_lane_names(detail)) + 8


def _lane_names(detail: ClassDetail) -> tuple[str, ...]:
    return tuple(dict.fromkeys(span.lane for span in detail.spans))


def _sums(detail: ClassDetail) -> str:
    sums: dict[str, float] = {}
    for span in detail.spans:
        if span.lane == "compute":
            sums[span.kind] = sums.get(span.kind, 0.0) + span.end_s - span.start_s
    return ", ".join(f"{kind} {format_seconds(seconds)}" for kind, seconds in sums.items())


def _class(detail: ClassDetail, top: int, frame_s: float) -> Markup:
    at = {lane: top + HEAD + LANE * n for n, lane in enumerate(_lane_names(detail))}
    tracks = (element("rect", x="0", width="100%", y=y, height=LANE - 4, class_="track") for y in at.values())
    is_wait = [span.kind in WAITS for span in detail.spans]
    busy = (_span(span, at[span.lane], frame_s) for span, wait in zip(detail.spans, is_wait, strict=True) if not wait)
    waits = (_span(span, at[span.lane], frame_s) for span, wait in zip(detail.spans, is_wait, strict=True) if wait)
    passes = (_pass(*run, at["compute"], frame_s) for run in _passes(detail)) if "compute" in at else ()
    marks = (_exposed(span, at[span.lane], frame_s) for span in detail.spans if span.exposed_s)
    return element("g", *tracks, *busy, *waits, *marks, *passes)


def _span(span: Span, y: int, frame_s: float) -> Markup:
    share = (span.end_s - span.start_s) / frame_s
    thin = " thin" if share < _THIN else ""
    css = phase_class(span.kind) if span.kind in _PHASES else f"wait-{span.kind}" if span.kind in WAITS else "call"
    title = element("title", _words(span)) if share > _TITLED else None
    return element("rect", *([title] if title else []), x=_percent(span.start_s / frame_s), width=_percent(share), y=y,
                   height=LANE - 4, class_=f"span {css}{thin}")


def _passes(detail: ClassDetail) -> Iterator[tuple[str, float, float]]:
    """Yields the passes of microbatches in order of time: (name, start in s, end in s)."""
    runs: list[tuple[str, float, float]] = []
    for span in detail.spans:
        if span.lane == "compute" and span.kind in _PASS_OF:
            name = f"{_PASS_OF[span.kind]}{span.microbatch}" if span.kind != "optimizer" else "opt"
            if runs and runs[-1][0] == name:
                runs[-1] = (name, runs[-1][1], span.end_s)
            else:
                runs.append((name, span.start_s, span.end_s))
    yield from runs


def _pass(name: str, start_s: float, end_s: float, y: int, frame_s: float) -> Markup | None:
    """Draws the name of a pass in its middle, or None where it is too narrow; a narrow screen hides more names."""
    share = (end_s - start_s) / frame_s
    if share < _NAMED:
        return None
    css = "pass-name" if share > 3 * _NAMED else "pass-name wide"
    return element("text", name, x=_percent((start_s + end_s) / 2 / frame_s), y=y + 13, text_anchor="middle",
                   class_=css)


def _exposed(span: Span, y: int, frame_s: float) -> Markup:
    """Marks the exposed part of a collective: its end, for which a kernel waited."""
    share = span.exposed_s / frame_s
    return element("rect", x=_percent((span.end_s - span.exposed_s) / frame_s), width=_percent(share), y=y,
                   height=LANE - 4, class_=f"span wait-communication{' thin exposed' if share < _THIN else ''}")


def _words(span: Span) -> str:
    kind = WAITS.get(span.kind, span.kind.replace("_", " "))
    where = f" {span.label}" if span.label else ""
    many = f" ({span.count:,} together)" if span.count > 1 else ""
    waited = f", {format_seconds(span.exposed_s)} of it exposed" if span.exposed_s else ""
    which = f", microbatch {span.microbatch}" if span.lane != "compute" or span.kind in _PHASES else ""
    return f"{kind}{where}{many}: {format_seconds(span.end_s - span.start_s)}{waited}{which}"


def _percent(share: float) -> str:
    return f"{number(100 * share) if share > 1e-4 else round(100 * share, 4):}%"


def _grid(frame_s: float, height: int) -> Markup:
    parts: list[Markup] = []
    for place, mark in enumerate(ticks(0.0, frame_s, 8)):
        share = mark / frame_s
        anchor = "start" if share < 0.03 else "end" if share > 0.97 else "middle"
        x = _percent(share)
        parts += [element("line", x1=x, x2=x, y1=6, y2=height + 4, class_="grid"),
                  element("text", format_seconds(mark) if mark else "0", x=x, y=height + 20, text_anchor=anchor,
                          class_="tick wide" if place % 2 else "tick")]  # a narrow screen hides every other one
    return element("g", *parts)


def lane_entries(report: Report) -> list[LegendEntry]:
    """Returns legend entries for the kinds of spans that `lanes` draws, such as kernels of forward."""
    kinds = {span.kind for _, detail in drawn_classes(report) for span in detail.spans}
    entries = [LegendEntry(f"kernels of {kind}", f"span {phase_class(kind)}") for kind in _PHASES if kind in kinds]
    entries += [LegendEntry(words, f"span wait-{kind}") for kind, words in WAITS.items() if kind in kinds]
    if kinds - set(_PHASES) - set(WAITS):
        entries.append(LegendEntry("collective beside kernels (hidden)", "span call"))
    return [*entries, LegendEntry("F0, B0: forward, backward of microbatch 0")]
