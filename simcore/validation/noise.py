"""Noise of measurements: how far runs of one configuration are apart, by source.

[Note: the noise floor]
*Repeated* runs have one scenario, source and release of the software; *equal* ones differ in release, or in who ran
them (a source says so by rows of its own). A simulation gives one number for all of them, so it is at best right about
their median: the noise is the distance of a run from the median of its configuration, the floor of a source its median.
A smaller error of a simulation says nothing. Releases also change the software, so the distance of equal runs is an
upper bound of what is chance. Most sources ran each configuration once: their noise is not known, which is not none.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

__all__ = ["Noise", "Run", "mixed", "noise_by_source"]


class Run(NamedTuple):
    """One measured number: `configuration` is equal for runs of the same scenario."""

    source: str
    configuration: Hashable
    release: str | None
    value: float


class Noise(BaseModel):
    """Noise of one source: median distance of runs from the median of their configuration, as a share of it.

    `repeated`: of runs under one release, `num_repeated` of them; `equal`: of all runs of a configuration that has
    several. None without such runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    repeated: float | None
    num_repeated: int
    equal: float | None
    num_equal: int

    @property
    def floor(self) -> float | None:
        """Error below which nothing is said: the larger of both, None without repeated or equal runs."""
        return max((noise for noise in (self.repeated, self.equal) if noise is not None), default=None)


def noise_by_source(runs: Iterable[Run]) -> Mapping[str, Noise]:
    """Noise of every source that has runs, by its name."""
    by_source: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_source[run.source].append(run)
    return {source: _noise(source, by_source[source]) for source in sorted(by_source)}


def mixed(noises: Sequence[float | None]) -> tuple[float | None, float]:
    """Noise of observations of several sources, each given that of its source or None where it is not known.

    Returns the mean over those that have one, so that sources weigh as they have observations, and their share.
    """
    known = [noise for noise in noises if noise is not None]
    return (statistics.mean(known) if known else None), len(known) / len(noises) if noises else 0.0


def _noise(source: str, runs: Sequence[Run]) -> Noise:
    equal: dict[Hashable, list[float]] = defaultdict(list)
    repeated: dict[Hashable, list[float]] = defaultdict(list)
    for run in runs:
        equal[run.configuration].append(run.value)
        repeated[run.configuration, run.release].append(run.value)
    (near, num_near), (far, num_far) = _distance(repeated), _distance(equal)
    return Noise(source=source, repeated=near, num_repeated=num_near, equal=far, num_equal=num_far)


def _distance(together: Mapping[Hashable, Sequence[float]]) -> tuple[float | None, int]:
    """Median distance of values from the median of theirs, and the number of values that are not alone."""
    apart = [abs(value / statistics.median(values) - 1) for values in together.values() if len(values) > 1
             for value in values]
    return (statistics.median(apart) if apart else None), len(apart)
