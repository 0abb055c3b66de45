"""Parts of the page about one report, drawn by `viz`; numbers for tables and pins beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from simcore.docgen.glossary import CATEGORIES
from simcore.errors import InputError, Problem
from simcore.results.report import Report
from simcore.results.time import Cost
from simcore.units import format_bytes, format_seconds
from viz.charts.class_bars import Mark, class_bars, drawn_categories
from viz.charts.legend import entry_of
from viz.charts.measured import Measured
from viz.exports.figures import Figure, alone
from viz.markup import element
from viz.pages import studio

__all__ = ["figure", "memory", "pictures", "priced", "view"]

_NOT_YET: Final = "not yet: "
"""Begin of a problem that is of rankscope, not of the job."""


def view(report: Report, marks: Sequence[Mark] = ()) -> dict[str, Any]:
    """Parts that a page shows at once: verdict, bars of the classes, traffic, facts, problems, and the numbers."""
    parts = {**studio.first_parts(_said(report), marks), "mostly": _mostly(report)}
    return {"parts": parts, "problems": [row.model_dump() for row in report.problems], "status": report.status,
            "verdict": report.job_verdict, "numbers": _numbers(report)}


def _said(report: Report) -> Report:
    """The report, of which a layout is called illegal only where nothing else stands in the way of an answer."""
    if report.status == "illegal" and any(row.message.startswith(_NOT_YET) for row in report.problems):
        return report.model_copy(update={"status": "error"})
    return report


def _mostly(report: Report) -> str:
    """Two largest categories of memory on a device that is too small, each in words; "" for a job that fits."""
    rank = report.peak_rank
    if report.verdict not in ("oom", "unsure") or rank is None or rank.peak is None:
        return ""
    largest = sorted(rank.peak.by_category.items(), key=lambda one: -one[1])[:2]
    words = (f"{name} {format_bytes(size)}" + (f" ({CATEGORIES[name]})" if name in CATEGORIES else "")
             for name, size in largest)
    return str(element("span", f"Most of it: {'; '.join(words)}."))


def priced(report: Report, usd_per_gpu_hour: float | None) -> Report:
    """Copy of the report with costs at a price of one's own, in USD for an hour of a GPU; None: as it is."""
    time, num_gpus = report.time, sum(rank.num_ranks for rank in report.ranks)
    if usd_per_gpu_hour is None or time is None or time.cost is None or not num_gpus:
        return report
    known = time.cost.price_per_gpu_hour
    per_step, per_million = time.cost.per_step, time.cost.per_million_tokens
    if not known or per_step is None or per_million is None:
        per_step, known = num_gpus * time.step_s / 3600, 1.0  # at one USD
        per_million = 1e6 / 3600 / time.tokens_per_s_per_gpu
    factor, hours = usd_per_gpu_hour / known, time.cost.gpu_hours
    cost = Cost(price_per_gpu_hour=usd_per_gpu_hour, price_source="your own price", per_step=per_step * factor,
                per_million_tokens=per_million * factor, run_s=time.cost.run_s, gpu_hours=hours,
                per_run=None if hours is None else hours * usd_per_gpu_hour)
    return report.model_copy(update={"time": time.model_copy(update={"cost": cost})})


def memory(report: Report, measured: Measured) -> dict[str, Any]:
    """Memory over the step of the fullest class, of a report with it; what was measured is drawn over it."""
    return {"parts": studio.memory_part(report, measured)}


def pictures(report: Report, opened: Sequence[str], measured: Measured) -> dict[str, Any]:
    """Parts that take longer: streams, and what a user opened: memory in full, placement."""
    parts = studio.streams_part(report)
    if "memory" in opened:
        parts |= studio.memory_part(report, measured, is_full=True)
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
