"""A measured run next to the simulated one: the values, and what all comparisons do.

A comparison is made by `beside_snapshot`, `beside_log` or `beside_failure`, from what was measured and the report of
the scenario that was run. JSON in and out.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from simcore.errors import InputError, NotYet, Problem
from simcore.results.report import Advice, Peak, RankReport, Report
from simcore.units import format_bytes

__all__ = ["Asked", "Beside", "Failure", "SideBySide", "Unit", "band", "beside", "of_rank"]

Unit = Literal["bytes", "seconds", "per second", "TFLOP/s", "share"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Beside(_Frozen):
    """One quantity of a run, measured and simulated; None if that side has no such number.

    `what`: name of the quantity. `difference`: simulated less measured; `error`: it as a share of the measured value.
    `told`: a remark.
    """

    what: str
    unit: Unit
    measured: int | float | None
    simulated: int | float | None
    difference: int | float | None = None
    error: float | None = None
    told: str = ""


class Failure(_Frozen):
    """The end of a run that ran out of memory. `kind`: by whom it is told, such as "PyTorch" or "NCCL".

    `phase`: of a step, or `setup`, `save`, `load`, `generation`; "" if unknown. `place`: the innermost stack frame.
    `rank`: of the job, None if it is not named; `device`: number of the GPU on its machine. `num_failed`:
    number of such messages. `asked_bytes`: what could not be allocated, rounded as printed.
    """

    kind: str
    phase: str = ""
    place: str = ""
    rank: int | None = None
    device: int | None = None
    num_failed: int = 1
    asked_bytes: int | None = None


class Asked(_Frozen):
    """Simulated allocations that torch rounds to the size that was asked for.

    `owner`: tensor and the kind of layer that holds it; `category`: as in a report. `num_bytes`: of one; `times`:
    number of them in the simulated microbatches, `in_phase` of which in the phase that failed. `shape`: its factors,
    "" where they are unknown.
    """

    owner: str
    category: str
    num_bytes: int
    times: int
    in_phase: int
    shape: str = ""


class SideBySide(_Frozen):
    """One measured run next to its scenario. `measured`: name of the file; `source`: kind of the file.

    `ranks`: the class of ranks whose memory is compared, as in a report. `groups`: bytes by purpose at the fullest
    moment of each side, the largest difference first; empty unless a snapshot has frames or is from rankscope.
    `verdict`: the simulated one, "" without one; `differs`: what the run says of its job that the scenario has
    otherwise, so that it is another run; `notes`: remarks. For a run that ended out of memory: `failure`,
    `asked` (simulated tensors of the size that was asked for) and `advice` (changes that make the scenario fit).
    """

    measured: str
    source: str
    scenario: str
    ranks: tuple[str, ...]
    verdict: str
    quantities: tuple[Beside, ...]
    groups: tuple[Beside, ...] = ()
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failure: Failure | None = None
    asked: tuple[Asked, ...] = ()
    advice: tuple[Advice, ...] = ()


def of_rank(report: Report, rank: int | None) -> tuple[RankReport, Peak]:
    """(class of the rank or the fullest class, its peak)."""
    rank_class = (report.peak_rank if rank is None
                  else next((candidate for candidate in report.ranks if candidate.has_rank(rank)), None))
    if rank_class is None and rank is not None:
        many = sum(candidate.num_ranks for candidate in report.ranks)
        raise InputError(Problem(report.name, f"has no rank {rank}: it has {many}"))
    if rank_class is None or rank_class.peak is None:
        raise NotYet(Problem(report.name, "not yet: measured beside a workload that has no training step alone"))
    return rank_class, rank_class.peak


def beside(what: str, unit: Unit, measured: float | None, simulated: float | None, told: str = "") -> Beside:
    """One quantity of both sides, with its difference where both have it."""
    if measured is None or simulated is None:
        return Beside(what=what, unit=unit, measured=measured, simulated=simulated, told=told)
    gap = simulated - measured
    return Beside(what=what, unit=unit, measured=measured, simulated=simulated, difference=gap,
                  error=gap / measured if measured else None, told=told)


def band(peak: Peak) -> str:
    """Remark with the range of simulated reserved memory."""
    low, high = map(format_bytes, peak.reserved_band_bytes)
    return f"simulated between {low} and {high}"
