"""Where bytes and samples lie in the chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.results.report import MemorySeries, RankReport
from viz.charts.stack import Clock, edges, totals
from viz.markup import number

__all__ = ["BOTTOM", "HEIGHT", "LETTER", "TOP", "Scale", "percent", "scale_of"]

TOP: Final = 66
BOTTOM: Final = TOP + 320
HEIGHT: Final = BOTTOM + 72
LETTER: Final = 7 / 650
"""Width of a letter as a share of the plot, where it is least wide and still shows names."""

_OFF_SCALE: Final = 3.4


@dataclass(frozen=True)
class Scale:
    """Bytes to pixels and samples to a share of the width; `capacity_y` is where the line of the device is drawn."""

    x: tuple[float, ...]
    first: float
    span: float
    top_bytes: float
    capacity_bytes: int | None

    def share(self, index: int) -> float:
        """Where sample `index` begins, 0 to 1 across the plot."""
        return (self.x[index] - self.first) / self.span

    def y(self, num_bytes: float) -> float:
        """Height of so many bytes."""
        return BOTTOM - (BOTTOM - TOP) * num_bytes / self.top_bytes

    @property
    def off_scale(self) -> bool:
        """Whether the capacity is so far above the peak that its line is drawn at the edge of the plot."""
        return self.capacity_bytes is not None and self.capacity_bytes > self.top_bytes


def scale_of(rank: RankReport, series: MemorySeries, clock: Clock, capacity: int | None, at_least: int = 0) -> Scale:
    """The scale of a chart: from zero to the capacity, or to a little over the peak where the capacity is far off."""
    x = edges(series, clock)
    highest = max(*totals(series), rank.peak.device_bytes if rank.peak else 0, at_least, 1)
    fits_in_view = capacity is not None and capacity <= _OFF_SCALE * highest
    top = max(highest, capacity or 0) * 1.05 if fits_in_view else highest * 1.25
    return Scale(x, x[0], (x[-1] - x[0]) or 1.0, top, capacity)


def percent(share: float) -> str:
    """`0.25` -> `"25%"`."""
    return f"{number(100 * share)}%"
