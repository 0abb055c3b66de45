"""A memory series as the memory chart stacks it: order and edges of the bands, runs of phases and layers, ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal

from simcore.results.report import MemorySeries, RankReport
from simcore.units import GIB, in_gib
from viz.palette import swatch

__all__ = ["Band", "Clock", "PhaseRun", "edges", "gib_ticks", "has_time", "layer_order", "layer_runs", "peak_index",
           "phase_runs", "stack", "ticks", "totals"]

Clock = Literal["issue", "time"]


@dataclass(frozen=True)
class Band:
    """One category in the stack: at each sample, the bytes up to its lower and up to its upper edge."""

    category: str
    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @property
    def heights(self) -> tuple[int, ...]:
        """Returns the bytes of the category at each sample."""
        return tuple(high - low for low, high in zip(self.lower, self.upper, strict=True))


@dataclass(frozen=True)
class PhaseRun:
    """One run of samples in a phase (or layer) called `phase`: indices of its first, and after its last."""

    phase: str
    first: int
    end: int


def totals(series: MemorySeries) -> tuple[int, ...]:
    """Returns the allocated bytes of all categories together, at each sample."""
    return tuple(map(sum, zip(*series.values, strict=True))) if series.values else ()


def peak_index(series: MemorySeries) -> int:
    """Returns the index of the first sample with the most bytes of all categories together."""
    total = totals(series)
    return total.index(max(total))


def layer_order(rank: RankReport) -> tuple[str, ...]:
    """Returns the categories as a memory chart stacks them, from top to bottom.

    Those that come and go are above those that are held for the whole step; both groups by bytes at the peak, largest
    first.
    """
    sizes = _sizes_at_peak(rank)
    return tuple(sorted(sizes, key=lambda name: (swatch(name).held, -sizes[name], name)))


def _sizes_at_peak(rank: RankReport) -> dict[str, int]:
    sizes = dict(rank.peak.by_category) if rank.peak else {}
    if rank.memory is None:
        return sizes
    sample = peak_index(rank.memory) if rank.memory.event_index else 0
    shown = {name: values[sample] if values else 0 for name, values in zip(rank.memory.categories, rank.memory.values,
                                                                      strict=True)}
    return {name: sizes.get(name, bytes_shown) for name, bytes_shown in shown.items()}


def stack(series: MemorySeries, order: Sequence[str]) -> tuple[Band, ...]:
    """Returns the bands of a memory chart from top to bottom, one a category of `order`; the last begins at 0."""
    by_name = dict(zip(series.categories, series.values, strict=True))
    base = (0,) * len(series.event_index)
    bands = []
    for name in reversed(order):
        upper = tuple(low + more for low, more in zip(base, by_name[name], strict=True))
        bands.append(Band(name, base, upper))
        base = upper
    return tuple(reversed(bands))


def has_time(series: MemorySeries) -> bool:
    """Tells whether the samples have times: without a timeline they all have the same one."""
    return len(set(series.time_s)) > 1


def edges(series: MemorySeries, clock: Clock) -> tuple[float, ...]:
    """Returns where each sample begins on the x axis, then where the last one ends; never decreasing.

    `clock`: "issue" for event numbers, "time" for seconds. A sample holds until the next one: memory changes in steps.
    Times are those at which the host issues; where a time is earlier than the one before it (streams run in parallel),
    the later time is used.
    """
    if clock == "issue":
        starts = tuple(float(index) for index in series.event_index)
        return (*starts, starts[-1] + 1.0)
    times = tuple(accumulate(series.time_s, max))
    return (*times, times[-1] + (times[-1] - times[0]) / max(1, len(times)))


def phase_runs(series: MemorySeries) -> tuple[PhaseRun, ...]:
    """Returns the runs of samples in one phase, in order."""
    return _runs(series.phases)


def layer_runs(series: MemorySeries) -> tuple[PhaseRun, ...]:
    """Returns the runs of samples in one layer, in order; its path is `phase`, "" between layers."""
    return _runs(series.layers)


def _runs(names: Sequence[str]) -> tuple[PhaseRun, ...]:
    runs = [(name, len(list(members))) for name, members in groupby(names)]
    ends = accumulate(length for _, length in runs)
    return tuple(PhaseRun(name, end - length, end) for (name, length), end in zip(runs, ends, strict=True))


def ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """Returns about `count` round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of ten."""
    rough = max(high - low, 1e-12) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def gib_ticks(top_bytes: float) -> tuple[tuple[int, str], ...]:
    """Returns (bytes, label in GiB) of about five ticks of a y axis, from zero to `top_bytes`."""
    marks = ticks(0.0, top_bytes / GIB, 5)
    digits = max(0, -math.floor(math.log10(marks[1]))) if len(marks) > 1 else 2
    return tuple((round(mark * GIB), in_gib(mark * GIB, digits)) for mark in marks)
