"""A measured run next to the simulated one: by quantity and, for a snapshot, by group of allocations.

Input: a `Dump` or a `Log`, and the report of the scenario that was run. Output: `SideBySide`, JSON in and out.

[Note: the same quantity]
The highest allocation of a log is of the full run, so it is compared with the higher of the first step and a later one;
that after the first iteration with the first step's (as `validate` does). Reserved is compared with the report's. A
snapshot counts all memory that torch's allocator handed out, with workspaces of cuBLAS; if the report counts these
outside of tensors, they are added, but not for a snapshot that rankscope wrote. Megatron's buffers hold parameters and
gradients in one function, so if a snapshot has them, these two are compared together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from simcore.errors import InputError, NotYet, Problem
from simcore.results.report import Peak, RankReport, Report
from simcore.units import format_bytes
from simcore.validation.memory_snapshot import Dump
from simcore.validation.stack_frames import BUFFERS, MAIN_GRADS, PARAMETERS, WORKSPACES, group_of_category
from simcore.validation.training_log import Log, Reading

__all__ = ["Beside", "SideBySide", "beside_dump", "beside_log"]

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


class SideBySide(_Frozen):
    """One measured run next to its scenario. `measured`: name of the file; `source`: kind of the file.

    `ranks`: the class of ranks whose memory is compared, as in a report. `groups`: bytes by purpose at the fullest
    moment of each side, the largest difference first; empty unless a snapshot has frames or is from rankscope.
    `verdict`: the simulated one, "" without one; `notes`: remarks.
    """

    measured: str
    source: str
    scenario: str
    ranks: tuple[str, ...]
    verdict: str
    quantities: tuple[Beside, ...]
    groups: tuple[Beside, ...] = ()
    notes: tuple[str, ...] = ()


def beside_dump(name: str, dump: Dump, report: Report, rank: int | None) -> SideBySide:
    """Comparison of a snapshot's fullest device with the class of ranks that has `rank`; None: with the fullest class.

    `name`: of the file. InputError if there is no such rank; NotYet for a report without a peak of a training step.
    """
    rank_class, peak = _of_rank(report, rank)
    apart = 0 if dump.ours else peak.outside.get("workspace", 0)
    added = "with workspaces, which the report counts beside tensors" if apart else ""
    quantities = (
        _beside("peak allocated", "bytes", dump.peak_bytes, peak.allocated_bytes + apart, added),
        _beside("allocated at the end", "bytes", dump.end_bytes,
                None if rank_class.end_bytes is None else rank_class.end_bytes + apart),
        _beside("reserved", "bytes", dump.reserved_bytes, peak.reserved_bytes, _band(peak)))
    return SideBySide(measured=name, source="memory snapshot", scenario=report.name, ranks=rank_class.ranks,
                      verdict=report.verdict or "", quantities=quantities, groups=tuple(_groups(dump, peak, apart)),
                      notes=tuple(_of_dump(dump)))


def beside_log(name: str, log: Log, report: Report, rank: int | None) -> SideBySide:
    """Comparison of a training log with the class of ranks that has `rank`; of several readings the highest counts.

    `rank` None: that of the log's highest allocated peak (else of its highest memory), or the fullest if the log names
    no rank. `name`: of the file. InputError if there is no such rank, or the log has no reading of its class; NotYet
    for a report without a peak of a training step.
    """
    memory = [reading for reading in log.readings if reading.rank is not None]
    if rank is None and memory:
        rank = max(memory, key=lambda reading: (reading.of == "allocated_peak", reading.value)).rank
    rank_class, _ = _of_rank(report, rank)
    rank_readings = [reading for reading in log.readings if reading.rank is None or rank_class.has_rank(reading.rank)]
    if memory and not any(reading.rank is not None for reading in rank_readings):
        others = ", ".join(sorted({str(reading.rank) for reading in memory}))
        raise InputError(Problem(name, f"has no reading of ranks {', '.join(rank_class.ranks)}, only of {others}"))
    return SideBySide(measured=name, source=f"log of {log.trainer}", scenario=report.name, ranks=rank_class.ranks,
                      verdict=report.verdict or "",
                      quantities=(*_of_log(rank_readings, report, rank_class), *_derived(log, rank_readings, report)),
                      notes=tuple(_of_batch(log, report)))


def _of_rank(report: Report, rank: int | None) -> tuple[RankReport, Peak]:
    """(class of the rank or the fullest class, its peak)."""
    rank_class = (report.peak_rank if rank is None
                  else next((candidate for candidate in report.ranks if candidate.has_rank(rank)), None))
    if rank_class is None and rank is not None:
        many = sum(candidate.num_ranks for candidate in report.ranks)
        raise InputError(Problem(report.name, f"has no rank {rank}: it has {many}"))
    if rank_class is None or rank_class.peak is None:
        raise NotYet(Problem(report.name, "not yet: measured beside a workload that has no training step alone"))
    return rank_class, rank_class.peak


def _beside(what: str, unit: Unit, measured: float | None, simulated: float | None, told: str = "") -> Beside:
    if measured is None or simulated is None:
        return Beside(what=what, unit=unit, measured=measured, simulated=simulated, told=told)
    gap = simulated - measured
    return Beside(what=what, unit=unit, measured=measured, simulated=simulated, difference=gap,
                  error=gap / measured if measured else None, told=told)


def _band(peak: Peak) -> str:
    low, high = map(format_bytes, peak.reserved_band_bytes)
    return f"simulated between {low} and {high}"


# ---- snapshots ------------------------------------------------------------------------------------------------------
def _groups(dump: Dump, peak: Peak, apart: int) -> Iterator[Beside]:
    if not dump.has_frames and not dump.ours:
        return
    simulated: Counter[str] = Counter({WORKSPACES: apart})
    for category, size in peak.by_category.items():
        simulated[group_of_category(category)] += size
    measured = Counter(dump.groups)
    if measured[BUFFERS]:
        for side in (measured, simulated):
            side[BUFFERS] += side.pop(PARAMETERS, 0) + side.pop(MAIN_GRADS, 0)
    names = [name for name in dict.fromkeys((*measured, *simulated)) if measured[name] or simulated[name]]
    for name in sorted(names, key=lambda name: (-abs(simulated[name] - measured[name]), name)):
        yield _beside(name, "bytes", measured[name], simulated[name])


def _of_dump(dump: Dump) -> Iterator[str]:
    if dump.ours:
        yield "rankscope wrote this snapshot: simulated stands beside simulated"
    else:
        yield f"the highest moment of the {dump.num_events:,} events that it has; what came before is not in it"
    if len(dump.devices) > 1:
        yield f"it has devices {', '.join(map(str, dump.devices))}; device {dump.device}, the fullest, is compared"
    if dump.refused and not dump.ours:
        yield "an allocation failed in it (oom): the measured peak is what there was room for"
    if not dump.has_frames and not dump.ours:
        yield "it has no frames, so what its bytes are for cannot be told: record with context='all'"


# ---- logs -----------------------------------------------------------------------------------------------------------
_WORDS: Final[dict[str, tuple[str, Unit]]] = {
    "allocated_peak": ("peak allocated", "bytes"), "allocated_peak_first": ("peak allocated, first step", "bytes"),
    "allocated_end": ("allocated after a step", "bytes"), "reserved_peak": ("reserved", "bytes"),
    "step_s": ("step", "seconds"), "tokens_per_s_per_gpu": ("tokens a second and GPU", "per second"),
    "tflops_per_gpu": ("TFLOP/s of a GPU", "TFLOP/s"), "mfu": ("MFU", "share")}

_OF_MEMORY: Final[dict[str, Callable[[RankReport, Peak], float | None]]] = {
    "allocated_peak": lambda rank, peak: max(peak.allocated_bytes, peak.first_step_bytes or 0),
    "allocated_peak_first": lambda rank, peak: peak.first_step_bytes,
    "allocated_end": lambda rank, peak: rank.end_bytes,
    "reserved_peak": lambda rank, peak: peak.reserved_bytes}


def _of_log(readings: list[Reading], report: Report, rank: RankReport) -> Iterator[Beside]:
    """Comparisons in the order of `_WORDS`; of several readings of one quantity the highest."""
    for of, (what, unit) in _WORDS.items():
        matching = [reading for reading in readings if reading.of == of]
        if matching:
            highest = max(matching, key=lambda reading: reading.value)
            yield _beside(what, unit, highest.value, _simulated(of, report, rank), _told(highest, rank, report))


def _simulated(of: str, report: Report, rank: RankReport) -> float | None:
    if of in _OF_MEMORY:
        assert rank.peak is not None
        return _OF_MEMORY[of](rank, rank.peak)
    time = report.time
    if time is None:
        return None
    return {"step_s": time.step_s, "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
            "tflops_per_gpu": time.model_tflops_per_gpu, "mfu": time.mfu}[of]


def _told(reading: Reading, rank: RankReport, report: Report) -> str:
    """Remark on the lines from which a reading comes."""
    if reading.rank is not None:
        return f"rank {reading.rank}, after iteration {reading.after}"
    if reading.of == "reserved_peak":
        assert rank.peak is not None
        return f"the highest of {reading.num_lines} lines, at step {reading.after}; {_band(rank.peak)}"
    convention = f"; FLOPs as {report.time.convention} counts them" if "flops" in reading.of and report.time else ""
    return f"median of {reading.num_lines} lines, the first left out{convention}" if reading.num_lines > 1 else \
        f"one line{convention}"


def _derived(log: Log, readings: list[Reading], report: Report) -> Iterator[Beside]:
    """Step time from tokens a second, or the other way round, if the log's batch is the scenario's."""
    time = report.time
    if time is None or any(_of_batch(log, report)):
        return
    tokens = time.step_s * time.tokens_per_s_per_gpu  # of a step, by GPU
    read = {reading.of: reading.value for reading in readings}
    if (rate := read.get("tokens_per_s_per_gpu")) and "step_s" not in read:
        yield _beside("step", "seconds", tokens / rate, time.step_s, "from tokens a second, of the scenario's batch")
    if (took := read.get("step_s")) and "tokens_per_s_per_gpu" not in read:
        yield _beside("tokens a second and GPU", "per second", tokens / took, time.tokens_per_s_per_gpu,
                      "from the step's time, of the scenario's batch")


def _of_batch(log: Log, report: Report) -> Iterator[str]:
    asked = report.scenario.get("training", {}).get("global_batch_size")
    if log.batch is not None and asked is not None and log.batch != asked:
        yield f"the log's global batch size is {log.batch}, the scenario's {asked}: times are of different work"
