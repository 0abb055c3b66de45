"""What many draws come to, as results give it: of lengths, of routing, of peaks."""

from __future__ import annotations

from functools import partial

import numpy as np

from simcore.inputs.quantity import Frozen
from simcore.placement.mesh import IntArray

__all__ = ["Drawn", "DrawnLengths", "DrawnPeak", "DrawnRows", "Quantiles", "quantiles"]


class Quantiles(Frozen):
    """Of many draws: half, 90 and 99 in a hundred are at most this; `max` is the highest of all."""

    p50: int
    p90: int
    p99: int
    max: int


class DrawnPeak(Frozen):
    """The peak over many draws."""

    allocated_bytes: Quantiles
    device_bytes: Quantiles


class DrawnRows(Frozen):
    """Rows that a rank's experts of one layer receive in one microbatch."""

    layer: str
    received: Quantiles


class Drawn(Frozen):
    """A step at routing drawn at random; see `simcore.simulation.expert_loads`.

    `hottest`: the highest rank of each draw, of `num_groups` expert groups a stage. `oom_probability`: share of draws
    in which some rank does not fit. `exact`: peaks are those of a full simulation to the byte, else but for rounding.
    """

    seed: int
    draws: int
    concentration: float | None
    num_groups: int
    num_microbatches: int
    balanced_rows: int
    received: tuple[DrawnRows, ...]
    hottest: DrawnPeak
    oom_probability: float
    exact: bool


class DrawnLengths(Frozen):
    """Padded lengths drawn from a distribution; see `simcore.simulation.random_lengths`.

    `batch`: of one microbatch; `step`: the longest of all ranks' in one step. `peak`: of the fullest rank at the four
    lengths of `step`, each simulated; `fits`: those of them that fit.
    """

    seed: int
    draws: int
    batch: Quantiles
    step: Quantiles
    peak: DrawnPeak
    fits: tuple[int, ...]


def quantiles(values: IntArray) -> Quantiles:
    """By nearest rank: each is one of the values."""
    ordered, (p50, p90, p99) = np.sort(values, axis=None), map(partial(_nearest, values.size), (50, 90, 99))
    return Quantiles(p50=int(ordered[p50]), p90=int(ordered[p90]), p99=int(ordered[p99]), max=int(ordered[-1]))


def _nearest(count: int, percent: int) -> int:
    return -(-count * percent // 100) - 1
