"""Quantiles over random draws in results: of lengths, of routing, of peaks."""

from __future__ import annotations

from functools import partial

import numpy as np

from simcore.inputs.quantity import Frozen
from simcore.placement.mesh import IntArray

__all__ = ["Drawn", "DrawnLengths", "DrawnPeak", "DrawnRows", "Quantiles", "quantiles"]


class Quantiles(Frozen):
    """Quantiles over draws: 50, 90 and 99 percent of the draws are at most this; `max` is the highest."""

    p50: int
    p90: int
    p99: int
    max: int


class DrawnPeak(Frozen):
    """Quantiles of the peak memory of a rank over random draws, in bytes."""

    allocated_bytes: Quantiles
    device_bytes: Quantiles


class DrawnRows(Frozen):
    """Quantiles over draws of the number of tokens that a rank's experts receive.

    In one layer and one microbatch. A token counts once for each of the experts that it chooses.
    """

    layer: str
    received: Quantiles


class Drawn(Frozen):
    """Results over many draws of random routing; see `simcore.simulation.expert_loads`.

    `hottest`: the highest rank of each draw, of `num_groups` expert groups a stage. `oom_probability`: share of draws
    in which some rank does not fit. `exact`: peaks equal those of a full simulation to the byte, else up to rounding.
    `concentration`: of the Dirichlet distribution of experts' popularity, None if all are alike. `balanced_rows`:
    tokens that the experts of a rank receive when all get equally many; `received`: in each layer. `band_bytes`: range
    of device memory of the highest draw, by measured runs of such layouts.
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
    band_bytes: tuple[int, int] | None = None


class DrawnLengths(Frozen):
    """Results over many drawn lengths of sequences, in tokens; see `simcore.simulation.random_lengths`.

    `batch`: padded length of one microbatch; `step`: longest length on any rank in one step. `peak`: of the fullest
    rank at the four lengths of `step`, each simulated; `fits`: those of them that fit.
    """

    seed: int
    draws: int
    batch: Quantiles
    step: Quantiles
    peak: DrawnPeak
    fits: tuple[int, ...]


def quantiles(values: IntArray) -> Quantiles:
    """50, 90 and 99% quantiles and maximum of `values`, by nearest rank: each is one of the values."""
    ordered, (p50, p90, p99) = np.sort(values, axis=None), map(partial(_nearest, values.size), (50, 90, 99))
    return Quantiles(p50=int(ordered[p50]), p90=int(ordered[p90]), p99=int(ordered[p99]), max=int(ordered[-1]))


def _nearest(count: int, percent: int) -> int:
    return -(-count * percent // 100) - 1
