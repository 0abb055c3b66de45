"""Parts of the page about one report, drawn by `viz`; numbers for tables and pins beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcore.errors import InputError, Problem
from simcore.results.report import Report
from simcore.units import format_seconds
from viz.charts.class_bars import Mark, class_bars, drawn_categories
from viz.charts.legend import entry_of
from viz.exports.figures import Figure, alone
from viz.pages import studio

__all__ = ["figure", "memory", "pictures", "view"]


def view(report: Report, marks: Sequence[Mark] = ()) -> dict[str, Any]:
    """Parts that a page shows at once: verdict, bars of the classes, traffic, facts, problems, and the numbers."""
    return {"parts": studio.first_parts(report, marks), "problems": [row.model_dump() for row in report.problems],
            "status": report.status, "verdict": report.verdict, "numbers": _numbers(report)}


def memory(report: Report) -> dict[str, Any]:
    """Memory over the step of the fullest class, of a report with it."""
    return {"parts": studio.memory_part(report)}


def pictures(report: Report, opened: Sequence[str]) -> dict[str, Any]:
    """Parts that take longer: streams, and what a user opened: memory in full, placement."""
    parts = studio.streams_part(report)
    if "memory" in opened:
        parts |= studio.memory_part(report, is_full=True)
    return {"parts": parts | (studio.placement_part(report) if "placement" in opened else {})}


def figure(report: Report) -> str:
    """SVG text with the bars of the classes, the verdict in its title; InputError for a report without peaks."""
    drawing = class_bars(report, "classes")
    if drawing is None:
        raise InputError(Problem("", "there is nothing to draw: the job has no memory"))
    time = f", step {format_seconds(report.time.step_s)}" if report.time else ""
    title = f"{report.name}: {report.verdict}{time}"
    return alone(Figure("classes", title, drawing, [*map(entry_of, drawn_categories(report))]))


def _numbers(report: Report) -> dict[str, Any]:
    """Numbers that are compared between pins; None where a report has none."""
    time, cost = report.time, report.time.cost if report.time else None
    return {
        "peak_bytes": report.highest_bytes, "capacity_bytes": report.capacity_bytes,
        "headroom_bytes": report.headroom_bytes, "band_bytes": report.band_bytes,
        "num_ranks": sum(rank.num_ranks for rank in report.ranks),
        "step_s": time.step_s if time else None, "mfu": time.mfu if time else None,
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu if time else None,
        "usd_per_million_tokens": cost.per_million_tokens if cost else None}
