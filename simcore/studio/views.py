"""Parts of the page about one report, drawn by `viz`; numbers for tables and pins beside them."""

from __future__ import annotations

from typing import Any

from simcore.results.report import Report
from viz.pages import studio

__all__ = ["pictures", "view"]


def view(report: Report) -> dict[str, Any]:
    """Parts that a page shows at once: verdict, bars of the classes, traffic, facts, problems, and the numbers."""
    return {"parts": studio.first_parts(report), "problems": [row.model_dump() for row in report.problems],
            "status": report.status, "verdict": report.verdict, "numbers": _numbers(report)}


def pictures(report: Report) -> dict[str, Any]:
    """Parts that take longer: memory over the step and streams of the fullest class, placement."""
    return {"parts": studio.picture_parts(report)}


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
