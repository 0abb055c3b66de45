"""The scale of numbers along an axis: linear or logarithmic, with round values for ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from viz.charts.stack import ticks

__all__ = ["ValueAxis"]

_WIDE_RANGE: Final = 12
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""


class ValueAxis:
    """A scale of values: linear, or logarithmic where they span more than a factor of 12.

    `low`, `high`: its ends; of a logarithmic one their powers of ten.
    """

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        self.is_log = low > 0 and high / low > _WIDE_RANGE
        ends = (math.log10(low), math.log10(high)) if self.is_log else (min(0.0, low), high)
        room = (ends[1] - ends[0]) * 0.04 or abs(ends[1]) * 0.04 or 1.0
        self.low, self.high = ends[0] - room * self.is_log, ends[1] + room

    def share(self, value: float) -> float:
        """Returns where a value is, 0 to 1 from `low` to `high`."""
        return ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)

    def marks(self) -> Sequence[float]:
        """Returns round values for ticks."""
        if not self.is_log:
            return ticks(self.low, self.high, 6)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        steps = (1, 2, 5) if self.high - self.low < 3 else (1,)
        marks = (step * 10.0**power for power in powers for step in steps)
        return [mark for mark in marks if self.low <= math.log10(mark) <= self.high]
