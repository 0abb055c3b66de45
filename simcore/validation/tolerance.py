"""Tolerances of errors against measured runs, and the functions that judge them.

[Note: step times are judged by rows left out]
Constants of time are fitted to measured rows. A step time is therefore judged by the error of a fit that had not seen
its group (`left_out.py`); the error of the whole fit stands beside it, and may be smaller only by a limited factor.

[Note: noise of a line]
Beside each line stands the noise of what was measured (`noise.py`): the mean over the observations whose source ran a
configuration several times, and the share of these. A median of step times is also kept if it is at most the median
noise, where a source without such runs counts as none: what is not known excuses nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from simcore.validation.noise import mixed

__all__ = ["ALLOCATED", "STABLE", "Judged", "Lap", "Pair", "Told", "Tolerance", "judge_allocated", "judge_reserved",
           "judge_times", "judge_verdicts", "median", "percentile"]

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Tolerance:
    """One tolerance of errors of memory (shares of the measured bytes): largest `median`, and how many may be far off.

    At least the share `share` of errors must be within `within` of the measured value or within `slack_bytes`.
    """

    name: str
    median: float
    within: float
    slack_bytes: int
    share: float


_MEGATRON = Tolerance("Megatron", 0.015, 0.04, 96 * MIB, 0.9)
_FSDP2 = Tolerance("FSDP2 family", 0.03, 0.07, 96 * MIB, 0.9)

ALLOCATED: Final = {"megatron": _MEGATRON, "megatron_fsdp": _MEGATRON, "fsdp2": _FSDP2, "automodel": _FSDP2}
"""Tolerance by framework; errors of other frameworks are shown and not judged."""

RESERVED_SHARE: Final = 0.8
"""Share of readings that must lie in our interval."""
RESERVED_MEDIAN: Final = 0.08
"""Largest median error of the interval's middle."""
OOM_CALLED_FITS: Final = 0.0
FITS_CALLED_OOM: Final = 0.03
UNSURE_SHARE: Final = 0.10
"""Largest share of runs about which the simulation is unsure."""

STABLE: Final = 0.15
"""Largest relative difference between releases of the software for a configuration's step time to be stable."""
TUNED_WITHIN, TUNED_SHARE = 0.15, 0.88
"""Share of tuned, stable observations of step time that must have at most this error when left out: (error, share)."""
STEP_MEDIANS: Final = {"tuned": 0.06, "bf16": 0.06, "fp8, mxfp8 and nvfp4": 0.07, "Nemotron": 0.09, "MLPerf": 0.08,
                       "untuned": 0.15}
"""Largest median errors of step time on runs left out, by family."""
OVER_FITTED: Final = 1.5
"""Largest ratio of a median error on runs left out to that of the whole fit."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One measured number of bytes, the simulated one, and the simulated interval from `low` to `high`.

    `noise`: of the source's readings of this quantity, as a share; None where it is not known.
    """

    framework: str
    measured: int
    simulated: int
    low: int
    high: int
    noise: float | None = None

    @property
    def error(self) -> float:
        """Error without its sign, as a share of the measured bytes."""
        return abs(self.simulated - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Lap:
    """One step time's error without its sign, as a share. `kind`: "tuned" for speed, "untuned", or "rl".

    `error`: by a fit that had not seen the run's group; `fitted`: by the whole fit. `noise`: of the source's runs, as a
    share, None where it is not known. `hybrid`: of a Nemotron; `mlperf`: of a round of MLPerf; `golden`: from
    continuous integration; `stable`: the times of different releases of the software are at most `STABLE` apart.
    """

    error: float
    kind: str
    precision: str
    hybrid: bool
    golden: bool
    stable: bool
    fitted: float
    noise: float | None = None
    mlperf: bool = False

    @property
    def families(self) -> dict[str, bool]:
        """Membership of this step time in each family of `STEP_MEDIANS`, by name."""
        return {"bf16": self.precision == "bf16", "Nemotron": self.hybrid, "MLPerf": self.mlperf,
                "tuned": self.kind == "tuned", "untuned": self.kind == "untuned",
                "fp8, mxfp8 and nvfp4": self.precision in ("fp8", "mxfp8", "nvfp4")}


class Judged(BaseModel):
    """One tolerance, judged: its subject, number of observations, `allowed` and actual (`found`) value, both shares.

    `allowed` is the largest median error, ratio of two or share of wrong verdicts, or the smallest share of good
    observations. Of step times, `fitted`: the same value by the whole fit. `noise`: of what was measured, None where it
    is not known of any source and of verdicts; `noise_share`: share of the observations of which it is known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    num: int
    allowed: float
    found: float
    is_kept: bool
    fitted: float | None = None
    noise: float | None = None
    noise_share: float | None = None


def median(values: Sequence[float]) -> float | None:
    """Middle value, or mean of the two middle ones; None without values."""
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Smallest of the values that at least `percent` per cent do not exceed; None without values."""
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1] if values else None


def judge_allocated(quantity: str, pairs: Sequence[Pair]) -> Iterator[Judged]:
    """Judges errors of allocated memory: median, and share near the measured value, two results for each tolerance.

    `quantity`: for the text of the results. Frameworks that share a tolerance (`ALLOCATED`) are judged together; those
    without one, and tolerances without pairs, are left out.
    """
    for tolerance in dict.fromkeys(ALLOCATED.values()):
        framework_pairs = [pair for pair in pairs if ALLOCATED.get(pair.framework) == tolerance]
        if framework_pairs:
            about, noises = f"{tolerance.name}, {quantity}", [pair.noise for pair in framework_pairs]
            yield _at_most(f"{about}: median error", tolerance.median, [pair.error for pair in framework_pairs], noises)
            near = [pair for pair in framework_pairs if pair.error <= tolerance.within
                    or abs(pair.simulated - pair.measured) <= tolerance.slack_bytes]
            limit = f"within {tolerance.within:.0%} or {tolerance.slack_bytes // MIB} MiB"
            yield _at_least(f"{about}: {limit}", tolerance.share, len(near), noises)


def judge_reserved(pairs: Sequence[Pair]) -> Iterator[Judged]:
    """Judges reserved memory: share of readings inside the simulated interval, median error of its middle.

    Gives nothing without pairs.
    """
    if pairs:
        inside = [pair for pair in pairs if pair.low <= pair.measured <= pair.high]
        noises = [pair.noise for pair in pairs]
        yield _at_least("reserved_peak: within our interval", RESERVED_SHARE, len(inside), noises)
        middles = [abs((pair.low + pair.high) / 2 - pair.measured) / pair.measured for pair in pairs]
        yield _at_most("reserved_peak: median error of the middle", RESERVED_MEDIAN, middles, noises)


class Told(NamedTuple):
    """Counts of runs by their simulated verdict."""

    fits: int
    unsure: int
    oom: int


def judge_verdicts(oom: Told, fits: Told) -> Iterator[Judged]:
    """Judges verdicts on runs that ran out of memory (`oom`) and on runs that fitted (`fits`): wrong and unsure ones.

    Gives nothing for a kind with no runs.
    """
    for what, allowed, told, wrong in (
            ("out of memory, told to fit", OOM_CALLED_FITS, oom, oom.fits),
            ("ran, told to be out of memory", FITS_CALLED_OOM, fits, fits.oom),
            ("told to be unsure", UNSURE_SHARE, (*oom, *fits), oom.unsure + fits.unsure)):
        if num := sum(told):
            yield Judged(what=what, num=num, allowed=allowed, found=wrong / num, is_kept=wrong / num <= allowed)


def judge_times(laps: Sequence[Lap]) -> Iterator[Judged]:
    """Judges errors of step time on runs left out: median of each family, share of small errors of tuned, stable runs.

    Each median is judged with golden runs (of continuous integration) and, if there are any, without them; beside each
    the ratio to the median of the whole fit. A family without times gives nothing, nor do steps that generate (`rl`).
    """
    laps = [lap for lap in laps if lap.kind != "rl"]
    for family, allowed in STEP_MEDIANS.items():
        family_laps = [lap for lap in laps if lap.families[family]]
        others = [lap for lap in family_laps if not lap.golden]
        if family_laps:
            yield from _medians(f"step time, {family}", allowed, family_laps)
        if others and len(others) < len(family_laps):
            yield from _medians(f"step time, {family}, without golden runs", allowed, others)
    tuned = [lap for lap in laps if lap.kind == "tuned" and lap.stable]
    if tuned:
        near, fitted = (sum(error <= TUNED_WITHIN for error in errors) for errors in (
            [lap.error for lap in tuned], [lap.fitted for lap in tuned]))
        share = _at_least(f"step time, tuned and stable: within {TUNED_WITHIN:.0%}", TUNED_SHARE, near,
                          [lap.noise for lap in tuned])
        yield share.model_copy(update={"fitted": fitted / len(tuned)})


def _medians(what: str, allowed: float, laps: Sequence[Lap]) -> Iterator[Judged]:
    """The median error of laps on runs left out, and its ratio to that of the whole fit, both judged."""
    left_out, fitted, excused = (statistics.median(values) for values in (
        [lap.error for lap in laps], [lap.fitted for lap in laps], [lap.noise or 0.0 for lap in laps]))
    noise, share = mixed([lap.noise for lap in laps])
    yield Judged(what=f"{what}: median error", num=len(laps), allowed=allowed, found=left_out, noise=noise,
                 noise_share=share, is_kept=left_out <= max(allowed, excused), fitted=fitted)
    ratio = left_out / fitted if fitted else 1.0
    yield Judged(what=f"{what}: left out over fitted", num=len(laps), allowed=OVER_FITTED, found=ratio, noise=noise,
                 noise_share=share, is_kept=ratio <= OVER_FITTED or left_out <= excused)


def _at_most(what: str, allowed: float, errors: Sequence[float], noises: Sequence[float | None]) -> Judged:
    actual, (noise, share) = statistics.median(errors), mixed(noises)
    return Judged(what=what, num=len(errors), allowed=allowed, found=actual, is_kept=actual <= allowed, noise=noise,
                  noise_share=share)


def _at_least(what: str, allowed: float, good: int, noises: Sequence[float | None]) -> Judged:
    """The share of `good` observations; `noises`: one each."""
    num, (noise, share) = len(noises), mixed(noises)
    return Judged(what=what, num=num, allowed=allowed, found=good / num, is_kept=good / num >= allowed, noise=noise,
                  noise_share=share)
