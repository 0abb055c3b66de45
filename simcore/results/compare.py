"""A comparison of two results: differences between the worst rank of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from simcore.results.phases import PHASE_PARTS
from simcore.results.report import RankReport, Report
from simcore.units import format_bytes, format_seconds

__all__ = ["Comparison", "Row", "compare", "worst_rank"]


class Row(BaseModel):
    """One quantity in result `a` and in result `b`.

    `difference` is b - a, `percent` 100 (b - a) / a, None if a is 0. A result without that quantity counts as zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    a: int | float
    b: int | float
    difference: int | float
    percent: float | None


class Comparison(BaseModel):
    """Two results side by side, each by its worst rank (`worst_rank`); `a` and `b` are their names.

    Rows of `at_rest` (by component), `peak` (by category) and `traffic` (bytes that leave the rank in a step) are in
    bytes, those of `time` in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    a: str
    b: str
    at_rest: tuple[Row, ...]
    peak: tuple[Row, ...]
    traffic: tuple[Row, ...]
    time: tuple[Row, ...]

    def __repr__(self) -> str:
        """One line with device memory and step time."""
        device = [f"device {format_bytes(row.a)} -> {format_bytes(row.b)}" for row in self.peak if row.what == "device"]
        step = [f"step {format_seconds(row.a)} -> {format_seconds(row.b)}" for row in self.time if row.what == "step"]
        return f"<Comparison {self.a!r} -> {self.b!r}: {', '.join((*device, *step)) or 'nothing to compare'}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """HTML that a notebook shows; see `Report`."""
        from viz.notebook.comparison import comparison_html

        return comparison_html(self)


def compare(a: Report, b: Report) -> Comparison:
    """Comparison of two results; a result without ranks or time counts as zero there."""
    rank_a, rank_b = worst_rank(a), worst_rank(b)
    at_rest, traffic = (_at_rest(rank_a), _at_rest(rank_b)), (_traffic(rank_a), _traffic(rank_b))
    return Comparison(
        a=a.name,
        b=b.name,
        at_rest=_rows(*at_rest) + _total(*at_rest),
        peak=_rows(_peak(rank_a), _peak(rank_b)) + _rows(_device(rank_a), _device(rank_b)),
        traffic=_rows(*traffic) + _total(*traffic),
        time=_rows(_time(a), _time(b)),
    )


def worst_rank(report: Report) -> RankReport | None:
    """Class of ranks with the highest device memory; without peaks with most bytes at rest.

    None without ranks.
    """
    return report.peak_rank or max(report.ranks, key=RankReport.at_rest_bytes, default=None)


def _at_rest(rank: RankReport | None) -> dict[str, int]:
    if rank is None:
        return {}
    return {name: c.params_bytes + c.grads_bytes + c.optimizer_bytes for name, c in rank.at_rest.items()}


def _peak(rank: RankReport | None) -> dict[str, int]:
    return dict(rank.peak.by_category) if rank and rank.peak else {}


def _device(rank: RankReport | None) -> dict[str, int]:
    """Sum of the categories, then with the allocator's cache, then with memory outside the allocator."""
    if rank is None or rank.peak is None:
        return {}
    peak = rank.peak
    return {"allocated": peak.allocated_bytes, "reserved": peak.reserved_bytes, "device": peak.device_bytes}


def _traffic(rank: RankReport | None) -> dict[str, int]:
    """Bytes that leave the rank in one step, by collective and axis."""
    wire: Counter[str] = Counter()
    for row in rank.traffic if rank else ():
        wire[f"{row.collective} {row.axis}"] += row.wire_bytes
    return dict(wire)


def _time(report: Report) -> dict[str, float]:
    if report.time is None:
        return {}
    time = report.time
    return {
        "step": time.step_s,
        "forward": time.forward_s,
        "backward": time.backward_s,
        "optimizer": time.optimizer_s,
        "exposed communication": time.exposed_communication_s,
        **{part: time.parts.get(part, 0.0) for part in ("contention", "bubble", "host")},
        **{part: time.parts[part] for part in PHASE_PARTS if part in time.parts},
    }


def _total(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[Row, ...]:
    return _rows({"total": sum(a.values())}, {"total": sum(b.values())})


def _rows(a: Mapping[str, int | float], b: Mapping[str, int | float]) -> tuple[Row, ...]:
    """Rows in the order of `a`, then those that only `b` has."""
    return tuple(_row(what, a.get(what, 0), b.get(what, 0)) for what in dict.fromkeys((*a, *b)))


def _row(what: str, a: int | float, b: int | float) -> Row:
    return Row(what=what, a=a, b=b, difference=b - a, percent=100 * (b - a) / a if a else None)
