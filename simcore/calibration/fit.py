"""Shares of the peaks from measured times: least squares of the cost model's equation.

[Note: fit] The model is seconds = flops / (peak x compute) + bytes / (bandwidth x memory) (`simcore.timing.kernel`,
[Note: shapes]). With u = 1 / compute and v = 1 / memory it is linear. Errors are relative, so each reading is divided
by its seconds; neither share may pass 100%, so u and v are at least 1. The minimum of a convex sum of squares over such
a region lies inside it, on one of its edges or at its corner: all are tried. If all readings have about the same FLOPs
per byte, the two shares cannot be separated: then the memory's share is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from simcore.calibration.reading import NotMeasured, Reading

__all__ = ["Shares", "above_floor", "fit_both", "fit_line", "fit_memory"]

_SPREAD: Final = 4.0
"""Least ratio of FLOPs per byte at which two shares can be separated; assumed, a guard against noise."""
_FLOORS: Final = 2.0
"""Readings up to this multiple of the shortest kernel are launches, not work; assumed."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the peaks that a kernel reaches, fitted to its readings, each from 0 to 1.

    `compute`: of the arithmetic peak, None for a kernel without matrix products; `memory`: of the memory bandwidth.
    `told_apart`: the readings can tell `memory` from `compute`, or only `memory` was fitted. `error`: median relative
    error of the fit; `used`: number of readings.
    """

    compute: float | None
    memory: float
    told_apart: bool
    error: float
    used: int


def above_floor(readings: Sequence[Reading], shortest: float) -> list[Reading]:
    """Readings of more than twice `shortest`, the seconds of the shortest kernel: others time the launch.

    NotMeasured if there are none.
    """
    kept = [reading for reading in readings if reading.seconds > _FLOORS * shortest]
    if not kept:
        raise NotMeasured(f"every reading is within {_FLOORS:g} times the shortest kernel")
    return kept


def fit_both(readings: Sequence[Reading], peak: float, bandwidth: float, memory: float) -> Shares:
    """Shares of both peaks that a kernel with matrix products reaches; see [Note: fit].

    `peak` in FLOP/s, `bandwidth` in bytes/s. `memory`: share of the bandwidth to use if readings cannot separate the
    two, unless one of them is faster than it allows: then both are fitted all the same.
    """
    rows = [(reading.flops / peak / reading.seconds,
             reading.moved / bandwidth / reading.seconds) for reading in readings]
    per_byte = [x / y for x, y in rows]
    separated = max(per_byte) >= _SPREAD * min(per_byte)
    u, v = _corner(rows) if separated else (_edge([x for x, _ in rows], [1 - y / memory for _, y in rows]), 1 / memory)
    if not separated and v > min(1 / y for _,
                                 y in rows):  # faster than the given memory share allows, so it does not apply
        u, v = _corner(rows)
    return Shares(1 / u, 1 / v, separated, median(abs(u * x + v * y - 1) for x, y in rows), len(rows))


def fit_memory(readings: Sequence[Reading], vector_peak: float, bandwidth: float) -> Shares:
    """Share of the memory bandwidth that a kernel without matrix products reaches.

    Its arithmetic is assumed to run at the full `vector_peak` (FLOP/s); `bandwidth` in bytes/s.
    """
    rows = [(reading.flops / vector_peak / reading.seconds,
             reading.moved / bandwidth / reading.seconds) for reading in readings]
    v = _edge([y for _, y in rows], [1 - x for x, _ in rows])
    return Shares(None, 1 / v, told_apart=True, error=median(abs(x + v * y - 1) for x, y in rows), used=len(rows))


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(latency in seconds, amount per second) of seconds = latency + amount / rate, by least squares.

    `points`: (amount, seconds); errors are relative. If the fitted latency is below zero, it is zero, and the rate is
    the median of amount / seconds. ValueError: fewer than two different amounts.
    """
    if len({amount for amount, _ in points}) < 2:
        raise ValueError("a line needs two amounts")
    rows = [(1 / seconds, amount / seconds) for amount, seconds in points]
    latency, slope = _free(rows)
    if latency < 0 or slope <= 0:
        latency, slope = 0.0, 1 / median(amount / seconds for amount, seconds in points)
    return latency, 1 / slope


def _corner(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(u, v), each at least 1, with the least sum of (u x + v y - 1)^2."""
    xs, ys = [x for x, _ in rows], [y for _, y in rows]
    tried = [_free(rows), (_edge(xs, [1 - y for y in ys]), 1.0), (1.0, _edge(ys, [1 - x for x in xs])), (1.0, 1.0)]
    return min((pair for pair in tried if min(pair) >= 1), key=lambda pair: _squares(rows, *pair))


def _free(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(u, v) without bounds; (0, 0) if the rows are on one line."""
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(r[i] for r in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return 0.0, 0.0
    return (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant


def _edge(xs: Sequence[float], targets: Sequence[float]) -> float:
    """The u of at least 1 that brings u x nearest to the targets."""
    return max(1.0, sum(x * t for x, t in zip(xs, targets, strict=True)) / sum(x * x for x in xs))


def _squares(rows: Sequence[tuple[float, float]], u: float, v: float) -> float:
    return sum((u * x + v * y - 1) ** 2 for x, y in rows)
