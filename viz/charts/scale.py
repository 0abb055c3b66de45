"""The scale of the memory chart: bytes to pixels, samples to shares of the width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from simcore.results.report import MemorySeries, RankReport
from viz.charts.stack import Clock, edges, totals
from viz.markup import number

__all__ = ["BOTTOM", "HEIGHT", "LETTER", "TOP", "Scale", "percent", "scale_of"]

TOP: Final = 66
BOTTOM: Final = TOP + 320
HEIGHT: Final = BOTTOM + 72
LETTER: Final = 7 / 650
"""Width of a character as a share of the narrowest plot that still shows labels."""

_OFF_SCALE: Final = 3.4
"""Capacity over the highest bytes above which the line of the capacity is not in the plot."""


@dataclass(frozen=True)
class Scale:
    """Scale of one memory chart: x positions of samples, and the bytes at the top of the plot.

    `x`: where each sample begins, in events or seconds, and the end of the last; `first`: the least of them; `span`:
    their range. `capacity_bytes`: of the device, None if unknown.
    """

    x: tuple[float, ...]
    first: float
    span: float
    top_bytes: float
    capacity_bytes: int | None

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Begins of the samples, and the end of the last, as shares of the plot's width, 0 to 1."""
        return tuple((at - self.first) / self.span for at in self.x)

    def share(self, index: int) -> float:
        """Returns the begin of sample `index` as a share of the plot's width, 0 to 1."""
        return self.shares[index]

    def y(self, num_bytes: float) -> float:
        """Returns the vertical position of `num_bytes`, in pixels from the top."""
        return BOTTOM - (BOTTOM - TOP) * num_bytes / self.top_bytes

    @property
    def off_scale(self) -> bool:
        """Tells whether the capacity is above the top of the plot, so that its line is drawn at the edge."""
        return self.capacity_bytes is not None and self.capacity_bytes > self.top_bytes


def scale_of(rank: RankReport, series: MemorySeries, clock: Clock, capacity: int | None, at_least: int = 0) -> Scale:
    """Returns the scale of a memory chart; bytes from zero to above the capacity and the device's peak.

    Where the capacity is more than 3.4 times the highest bytes, it is left out of the scale. `at_least`: bytes up to
    which the scale reaches, where charts are compared.
    """
    x = edges(series, clock)
    highest = max(*totals(series), rank.peak.device_bytes if rank.peak else 0, at_least, 1)
    fits_in_view = capacity is not None and capacity <= _OFF_SCALE * highest
    top = max(highest, capacity or 0) * 1.05 if fits_in_view else highest * 1.25
    return Scale(x, x[0], (x[-1] - x[0]) or 1.0, top, capacity)


def percent(share: float) -> str:
    """Returns a share of the width (0 to 1) as an SVG coordinate: `0.25` is `"25%"`."""
    return f"{number(100 * share)}%"
