"""Decision on a report: whether it surely or likely fits, and in a few words what decides it."""

from __future__ import annotations

from simcore.results.report import Report
from simcore.units import format_bytes

__all__ = ["decides", "is_likely", "is_sure"]


def decides(report: Report) -> str:
    """Phase of the highest moment with the category that has most bytes there; "" for a report without a peak.

    Where a phase beside the steps has a worse verdict than the step, that phase; for a layout that is refused, the
    first reason.
    """
    if report.problems:
        return f"refused: {report.problems[0].message}"
    if report.job_verdict != report.verdict and report.host is not None:
        return f"in {' and '.join(report.worse_phases)}"
    peak = report.peak_rank.peak if report.peak_rank else None
    if peak is None or not peak.by_category:
        return ""
    name, size = max(peak.by_category.items(), key=lambda item: item[1])
    return f"in {peak.phase}, {name} {format_bytes(size)}"


def is_sure(report: Report) -> bool:
    """True if the job fits with the whole range of measured errors."""
    return report.job_verdict == "fits"


def is_likely(report: Report) -> bool:
    """True if the likely peak fits, and no phase beside the steps is out of memory."""
    return (report.headroom_bytes or 0) >= 0 and (report.job_verdict != "oom" or report.verdict == "oom")
