"""Scenarios by peak memory and by time or cost: scatters with the Pareto edge."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.results.report import Report
from simcore.units import format_seconds
from viz.charts.scatter import Point, scatter
from viz.markup import Markup

__all__ = ["cost_per_million_tokens", "cost_scatter", "time_points", "time_scatter"]


def time_points(reports: Sequence[Report]) -> list[Point]:
    """Returns points (step time in s, bytes on the fullest rank) of the scenarios that have both, in their order.

    `Point.row` is the index in `reports`.
    """
    return _points(reports, [_step_s(report) for report in reports])


def _points(reports: Sequence[Report], values: Sequence[float | None]) -> list[Point]:
    return [Point(n, report.name, value, report.highest_bytes, report.verdict)
            for n, (report, value) in enumerate(zip(reports, values, strict=True))
            if value is not None and report.highest_bytes is not None]


def _capacities(reports: Sequence[Report]) -> list[int]:
    return [report.capacity_bytes for report in reports if report.capacity_bytes]


def _step_s(report: Report) -> float | None:
    return report.time.step_s if report.time else None


def cost_per_million_tokens(report: Report) -> float | None:
    """Returns the cost of a million tokens in USD; None without a time or a price."""
    return report.time.cost.per_million_tokens if report.time and report.time.cost else None


def time_scatter(reports: Sequence[Report], identity: str) -> Markup | None:
    """Draws all scenarios by peak memory and step time; None where no scenario has both.

    `identity`: begin of the ids in it, unique on the page.
    """
    return scatter(time_points(reports), "Peak memory against step time",
                   "time of a step", format_seconds, _capacities(reports), identity)


def cost_scatter(reports: Sequence[Report], identity: str) -> Markup | None:
    """Draws all scenarios by peak memory and USD per million tokens; None where none has both.

    `identity`: begin of the ids in it, unique on the page.
    """
    points = _points(reports, [cost_per_million_tokens(report) for report in reports])
    return scatter(points, "Peak memory against cost", "USD per million tokens", lambda usd: f"{usd:.3g}",
                   _capacities(reports), identity)
