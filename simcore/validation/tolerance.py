"""How far from a measured run an answer may be: the one place that says so, and the arithmetic of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict

__all__ = ["ALLOCATED", "STABLE", "Judged", "Lap", "Pair", "Tolerance", "judge_allocated", "judge_reserved",
           "judge_times", "judge_verdicts", "median", "percentile"]

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`median` of errors at most; a share `share` of them within `within` of what was measured, or `slack_bytes`."""

    name: str
    median: float
    within: float
    slack_bytes: int
    share: float


_MEGATRON = Tolerance("Megatron", 0.015, 0.04, 96 * MIB, 0.9)
_FSDP2 = Tolerance("FSDP2 family", 0.03, 0.07, 96 * MIB, 0.9)

ALLOCATED: Final = {"megatron": _MEGATRON, "megatron_fsdp": _MEGATRON, "fsdp2": _FSDP2, "automodel": _FSDP2}
"""By framework; of others, errors are shown and not judged."""

RESERVED_SHARE: Final = 0.8
"""Of readings that must lie in our interval."""
RESERVED_MEDIAN: Final = 0.08
"""Of the errors of the interval's middle, at most."""
OOM_CALLED_FITS: Final = 0.0
FITS_CALLED_OOM: Final = 0.03

STABLE: Final = 0.15
"""By how much releases of the software may differ where a configuration's step time is called stable."""
TUNED_WITHIN, TUNED_SHARE = 0.15, 0.9
"""Of tuned, stable observations of step time so many must be so near."""
STEP_MEDIANS: Final = {"bf16": 0.05, "Nemotron": 0.08, "untuned": 0.15, "fp8, mxfp8 and nvfp4": 0.1}
"""Of errors of step time, at most."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One reading beside our number and its interval."""

    framework: str
    measured: int
    simulated: int
    low: int
    high: int

    @property
    def error(self) -> float:
        """Without its sign, as a share of what was measured."""
        return abs(self.simulated - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Lap:
    """The error of one step time without its sign; `hybrid`: of a Nemotron; `golden`: of continuous integration."""

    error: float
    kind: str
    precision: str
    hybrid: bool
    golden: bool
    stable: bool

    @property
    def families(self) -> dict[str, bool]:
        """Which of `STEP_MEDIANS` are about it."""
        return {"bf16": self.precision == "bf16", "Nemotron": self.hybrid, "untuned": self.kind == "untuned",
                "fp8, mxfp8 and nvfp4": self.precision in ("fp8", "mxfp8", "nvfp4")}


class Judged(BaseModel):
    """One tolerance: what it is about, from how many observations, what is allowed and what was found (shares)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    num: int
    allowed: float
    found: float
    is_kept: bool


def median(values: Sequence[float]) -> float | None:
    """The middle value, or the mean of the two middle ones; None of nothing."""
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least so many per cent do not exceed; None of nothing."""
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1] if values else None


def judge_allocated(quantity: str, pairs: Sequence[Pair]) -> Iterator[Judged]:
    """Each tolerance by itself, over the frameworks that share it."""
    for tolerance in dict.fromkeys(ALLOCATED.values()):
        mine = [pair for pair in pairs if ALLOCATED.get(pair.framework) == tolerance]
        if mine:
            about = f"{tolerance.name}, {quantity}"
            yield _at_most(f"{about}: median error", tolerance.median, [pair.error for pair in mine])
            near = [pair for pair in mine if pair.error <= tolerance.within
                    or abs(pair.simulated - pair.measured) <= tolerance.slack_bytes]
            told = f"within {tolerance.within:.0%} or {tolerance.slack_bytes // MIB} MiB"
            yield _at_least(f"{about}: {told}", tolerance.share, len(near), len(mine))


def judge_reserved(pairs: Sequence[Pair]) -> Iterator[Judged]:
    """The interval must hold most readings, and its middle must not be far."""
    if pairs:
        held = [pair for pair in pairs if pair.low <= pair.measured <= pair.high]
        yield _at_least("reserved_peak: within our interval", RESERVED_SHARE, len(held), len(pairs))
        middles = [abs((pair.low + pair.high) / 2 - pair.measured) / pair.measured for pair in pairs]
        yield _at_most("reserved_peak: median error of the middle", RESERVED_MEDIAN, middles)


def judge_verdicts(oom: tuple[int, int], fits: tuple[int, int]) -> Iterator[Judged]:
    """(wrong, all) of the runs that ran out of memory, and of those that did not."""
    for what, allowed, (wrong, num) in (("out of memory, told to fit", OOM_CALLED_FITS, oom),
                                        ("ran, told to be out of memory", FITS_CALLED_OOM, fits)):
        if num:
            yield Judged(what=what, num=num, allowed=allowed, found=wrong / num, is_kept=wrong / num <= allowed)


def judge_times(laps: Sequence[Lap]) -> Iterator[Judged]:
    """Medians of families, with and without golden runs where there are any; tuned and stable ones one by one."""
    for family, allowed in STEP_MEDIANS.items():
        mine = [lap for lap in laps if lap.families[family]]
        kept = [lap for lap in mine if not lap.golden]
        if mine:
            yield _at_most(f"step time, {family}: median error", allowed, [lap.error for lap in mine])
        if kept and len(kept) < len(mine):
            told = f"step time, {family}, without golden runs: median error"
            yield _at_most(told, allowed, [lap.error for lap in kept])
    tuned = [lap for lap in laps if lap.kind == "tuned" and lap.stable]
    if tuned:
        near = [lap for lap in tuned if lap.error <= TUNED_WITHIN]
        yield _at_least(f"step time, tuned and stable: within {TUNED_WITHIN:.0%}", TUNED_SHARE, len(near), len(tuned))


def _at_most(what: str, allowed: float, errors: Sequence[float]) -> Judged:
    found = statistics.median(errors)
    return Judged(what=what, num=len(errors), allowed=allowed, found=found, is_kept=found <= allowed)


def _at_least(what: str, allowed: float, good: int, num: int) -> Judged:
    return Judged(what=what, num=num, allowed=allowed, found=good / num, is_kept=good / num >= allowed)
