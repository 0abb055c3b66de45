"""What a stacked chart needs to know of a MemorySeries: the order of the layers, their edges, the phases, the ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final, Literal

from simcore.results.report import MemorySeries, RankReport
from viz.palette import swatch

__all__ = ["Band", "Clock", "PhaseRun", "edges", "gib_ticks", "has_time", "layer_order", "layer_runs", "peak_index",
           "phase_runs", "stack", "ticks", "totals"]

Clock = Literal["issue", "time"]
_GIB: Final = 2**30


@dataclass(frozen=True)
class Band:
    """One category of the stack: the bytes under its lower and its upper edge at each sample."""

    category: str
    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @property
    def heights(self) -> tuple[int, ...]:
        """Bytes of the category at each sample."""
        return tuple(high - low for low, high in zip(self.lower, self.upper, strict=True))


@dataclass(frozen=True)
class PhaseRun:
    """A stretch of samples in one phase: the first, and one past the last."""

    phase: str
    first: int
    end: int


def totals(series: MemorySeries) -> tuple[int, ...]:
    """Allocated bytes at each sample."""
    return tuple(map(sum, zip(*series.values, strict=True))) if series.values else ()


def peak_index(series: MemorySeries) -> int:
    """The first sample with the most bytes."""
    total = totals(series)
    return total.index(max(total))


def layer_order(rank: RankReport) -> tuple[str, ...]:
    """Categories from the top of the stack to its floor: what comes and goes over what is held, each largest first."""
    sizes = _sizes_at_peak(rank)
    return tuple(sorted(sizes, key=lambda name: (swatch(name).held, -sizes[name], name)))


def _sizes_at_peak(rank: RankReport) -> dict[str, int]:
    sizes = dict(rank.peak.by_category) if rank.peak else {}
    if rank.memory is None:
        return sizes
    at = peak_index(rank.memory) if rank.memory.event_index else 0
    shown = {name: values[at] if values else 0 for name, values in zip(rank.memory.categories, rank.memory.values,
                                                                      strict=True)}
    return {name: sizes.get(name, bytes_shown) for name, bytes_shown in shown.items()}


def stack(series: MemorySeries, order: Sequence[str]) -> tuple[Band, ...]:
    """The bands from the top of the stack to its floor, in the order given."""
    by_name = dict(zip(series.categories, series.values, strict=True))
    floor = (0,) * len(series.event_index)
    bands = []
    for name in reversed(order):
        upper = tuple(low + more for low, more in zip(floor, by_name[name], strict=True))
        bands.append(Band(name, floor, upper))
        floor = upper
    return tuple(reversed(bands))


def has_time(series: MemorySeries) -> bool:
    """Whether the samples are dated: without a timeline they all stand at the same moment."""
    return len(set(series.time_s)) > 1


def edges(series: MemorySeries, clock: Clock) -> tuple[float, ...]:
    """Where each sample begins on the x axis, and where the last one ends; never falling.

    A sample holds until the next: memory changes in steps. Time is that of the issuing host; where a date is behind
    the one before it (streams run side by side) the later date stands.
    """
    if clock == "issue":
        starts = tuple(float(index) for index in series.event_index)
        return (*starts, starts[-1] + 1.0)
    dated = tuple(accumulate(series.time_s, max))
    return (*dated, dated[-1] + (dated[-1] - dated[0]) / max(1, len(dated)))


def phase_runs(series: MemorySeries) -> tuple[PhaseRun, ...]:
    """The phases one after the other, neighbours of one name joined."""
    return _runs(series.phases)


def layer_runs(series: MemorySeries) -> tuple[PhaseRun, ...]:
    """Layers one after the other, in the place of phases; the empty text is between layers."""
    return _runs(series.layers)


def _runs(names: Sequence[str]) -> tuple[PhaseRun, ...]:
    runs = [(name, len(list(members))) for name, members in groupby(names)]
    ends = accumulate(length for _, length in runs)
    return tuple(PhaseRun(name, end - length, end) for (name, length), end in zip(runs, ends, strict=True))


def ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """About `count` round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of ten."""
    rough = max(high - low, 1e-12) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def gib_ticks(top_bytes: float) -> tuple[tuple[int, str], ...]:
    """Bytes and label (in GiB) of the ticks of the y axis."""
    marks = ticks(0.0, top_bytes / _GIB, 5)
    digits = max(0, -math.floor(math.log10(marks[1]))) if len(marks) > 1 else 2
    return tuple((round(mark * _GIB), f"{mark:.{digits}f}") for mark in marks)
