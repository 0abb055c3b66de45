"""A training log next to the simulated step: memory of a rank, times, rates.

[Note: the same quantity]
The highest allocation of a log is of the full run, so it is compared with the higher of the first step and a later one;
that after the first iteration with the first step's (as `validate` does). Reserved is compared with the report's. Of a
step of reinforcement learning its time is compared and the times of its phases; no rate of tokens, which trainers count
in several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from simcore.errors import InputError, Problem
from simcore.results.phases import PhaseName
from simcore.results.report import Peak, RankReport, Report
from simcore.results.time import StepTime
from simcore.units import format_bytes
from simcore.validation.logs.job_told import BATCH
from simcore.validation.logs.reading import Log, Reading
from simcore.validation.side_by_side import Beside, SideBySide, Unit, band, beside, of_rank

__all__ = ["beside_log"]

_WORDS: Final[dict[str, tuple[str, Unit]]] = {
    "allocated_peak": ("peak allocated", "bytes"), "allocated_peak_first": ("peak allocated, first step", "bytes"),
    "allocated_end": ("allocated after a step", "bytes"),
    "allocated_start": ("allocated before the first step", "bytes"),
    "reserved_peak": ("reserved", "bytes"), "step_s": ("step", "seconds"), "forward_s": ("forward", "seconds"),
    "backward_s": ("backward", "seconds"), "optimizer_s": ("optimizer's step", "seconds"),
    "generation_s": ("phase generation", "seconds"), "logprob_s": ("phases logprob and reference", "seconds"),
    "training_s": ("phase training", "seconds"), "refit_s": ("phase refit", "seconds"),
    "tokens_per_s_per_gpu": ("tokens a second and GPU", "per second"),
    "trained_tokens_per_s_per_gpu": ("tokens with a loss a second and GPU", "per second"),
    "tokens_per_s": ("tokens a second, all GPUs", "per second"),
    "samples_per_s": ("sequences a second, all GPUs", "per second"),
    "tflops_per_gpu": ("TFLOP/s of a GPU", "TFLOP/s"), "mfu": ("MFU", "share")}

_OF_MEMORY: Final[dict[str, Callable[[RankReport, Peak], float | None]]] = {
    "allocated_peak": lambda rank, peak: max(peak.allocated_bytes, peak.first_step_bytes or 0),
    "allocated_peak_first": lambda rank, peak: peak.first_step_bytes,
    "allocated_end": lambda rank, peak: rank.end_bytes,
    "allocated_start": lambda rank, peak: None,
    "reserved_peak": lambda rank, peak: peak.reserved_bytes}

_OF_PHASES: Final[dict[str, tuple[PhaseName, ...]]] = {
    "generation_s": ("generation",), "logprob_s": ("logprob", "reference"), "training_s": ("training",),
    "refit_s": ("refit",)}

_OF_TIME: Final[dict[str, Callable[[StepTime], float]]] = {
    "step_s": lambda time: time.step_s, "forward_s": lambda time: time.forward_s,
    "backward_s": lambda time: time.backward_s, "optimizer_s": lambda time: time.optimizer_s,
    "tokens_per_s_per_gpu": lambda time: time.tokens_per_s_per_gpu,
    "tflops_per_gpu": lambda time: time.model_tflops_per_gpu, "mfu": lambda time: time.mfu}


def beside_log(name: str, log: Log, report: Report, rank: int | None) -> SideBySide:
    """Comparison of a training log with the class of ranks that has `rank`; of several readings the highest counts.

    `rank` None: that of the log's highest allocated peak (else of its highest memory), or the fullest if the log names
    no rank. `name`: of the file. InputError if there is no such rank, or the log has no reading of its class; NotYet
    for a report with neither a peak of a training step nor phases.
    """
    if report.phases:
        return _of_phases(name, log, report)
    memory = [reading for reading in log.readings if reading.rank is not None]
    if rank is None and memory:
        rank = max(memory, key=lambda reading: (reading.of == "allocated_peak", reading.value)).rank
    rank_class, peak = of_rank(report, rank)
    rank_readings = [reading for reading in log.readings if reading.rank is None or rank_class.has_rank(reading.rank)]
    if memory and not any(reading.rank is not None for reading in rank_readings):
        others = ", ".join(sorted({str(reading.rank) for reading in memory}))
        raise InputError(Problem(name, f"has no reading of ranks {', '.join(rank_class.ranks)}, only of {others}"))
    rows = tuple(beside(*_WORDS[reading.of], reading.value, _simulated(reading.of, report, rank_class, peak),
                        _told(reading, peak, report)) for reading in _highest(rank_readings))
    every = (*rows, *_derived(log, rank_readings, report))
    return SideBySide(measured=name, source=f"log of {log.trainer}", scenario=report.name, ranks=rank_class.ranks,
                      verdict=report.verdict or "", quantities=every, notes=(*_of_numbers(log, every), *log.notes),
                      differs=(*_of_batch(log, report), *_of_device(rank_readings, report)))


def _of_phases(name: str, log: Log, report: Report) -> SideBySide:
    """Comparison with a step of reinforcement learning, whose report has no peak of one training step."""
    rows = tuple(beside(*_WORDS[reading.of], reading.value, _simulated_phase(reading.of, report),
                        _told(reading, None, report)) for reading in _highest(log.readings))
    every = tuple(ranks for one in report.ranks for ranks in one.ranks)
    has_memory = any(reading.of in _OF_MEMORY for reading in log.readings)
    notes = ("memory of a step with phases is not compared: a log does not say of which phase it is",) * has_memory
    return SideBySide(measured=name, source=f"log of {log.trainer}", scenario=report.name, ranks=every,
                      verdict=report.verdict or "", quantities=rows, notes=(*log.notes, *notes))


def _highest(readings: tuple[Reading, ...] | list[Reading]) -> Iterator[Reading]:
    """Highest reading of each quantity, in the order of `_WORDS`."""
    for of in _WORDS:
        matching = [reading for reading in readings if reading.of == of]
        if matching:
            yield max(matching, key=lambda reading: reading.value)


def _simulated_phase(of: str, report: Report) -> float | None:
    if of == "step_s":
        return report.time.step_s if report.time else None
    wanted = [phase.seconds for phase in report.phases if phase.phase in _OF_PHASES.get(of, ())]
    return sum(wanted) if wanted else None


def _simulated(of: str, report: Report, rank: RankReport, peak: Peak) -> float | None:
    if of in _OF_MEMORY:
        return _OF_MEMORY[of](rank, peak)
    time = report.time
    if time is None:
        return None
    if of == "tokens_per_s":
        return time.tokens_per_s_per_gpu * sum(one.num_ranks for one in report.ranks)
    if of == "samples_per_s":
        batch = report.scenario.get("training", {}).get("global_batch_size")
        return batch / time.step_s if batch else None
    return _OF_TIME[of](time) if of in _OF_TIME else None


def _told(reading: Reading, peak: Peak | None, report: Report) -> str:
    """Remark on the lines from which a reading comes."""
    told = reading.note
    if told:
        pass
    elif reading.of in _OF_MEMORY:
        rank = "" if reading.rank is None else f"rank {reading.rank}, "
        lines = f"the highest of {reading.num_lines} lines, " if reading.num_lines > 1 else ""
        told = f"{rank}{lines}after step {reading.after}"
    else:
        told = f"median of {reading.num_lines} lines, the first left out" if reading.num_lines > 1 else "one line"
    if reading.of == "reserved_peak" and peak is not None:
        told = f"{told}; {band(peak)}"
    if "flops" in reading.of and report.time:
        told = f"{told}; FLOPs as {report.time.convention} counts them"
    return told


def _derived(log: Log, readings: list[Reading], report: Report) -> Iterator[Beside]:
    """Step time from a rate, or the other way round, if the log's batch is the scenario's."""
    time = report.time
    if time is None or any(_of_batch(log, report)):
        return
    tokens = time.step_s * time.tokens_per_s_per_gpu  # of a step, by GPU
    gpus = sum(one.num_ranks for one in report.ranks)
    read = {reading.of: reading.value for reading in readings}
    rate = read.get("tokens_per_s_per_gpu") or read.get("tokens_per_s", 0.0) / gpus
    batch = report.scenario.get("training", {}).get("global_batch_size")
    if rate and "step_s" not in read:
        told = "from tokens a second, of the scenario's batch" + ", if the run had it" * (log.batch is None)
        yield beside("step", "seconds", tokens / rate, time.step_s, told)
    elif batch and read.get("samples_per_s") and "step_s" not in read:
        told = "from sequences a second, of the scenario's batch"
        yield beside("step", "seconds", batch / read["samples_per_s"], time.step_s, told)
    if (took := read.get("step_s")) and not rate:
        yield beside("tokens a second and GPU", "per second", tokens / took, time.tokens_per_s_per_gpu,
                     "from the step's time, of the scenario's batch")


def _of_numbers(log: Log, rows: Sequence[Beside]) -> Iterator[str]:
    """Says that a log without its batch is far from the job: more than twice or less than half."""
    far = [row.what for row in rows if row.error is not None and not -0.5 <= row.error <= 1]
    if far and log.batch is None:
        yield (f"{', '.join(far)}: more than twice or less than half of what this job has. The log does not say its "
               "batch: most likely it is of another job, and then these numbers compare different work")


def _of_device(readings: list[Reading], report: Report) -> Iterator[str]:
    """Says that a run held more than a GPU of the scenario has."""
    held = max((one.value for one in readings if _WORDS[one.of][1] == "bytes"), default=0.0)
    if report.capacity_bytes is not None and held > report.capacity_bytes:
        yield (f"the run held {format_bytes(held)}, and a GPU of the job has {format_bytes(report.capacity_bytes)}: "
               "another machine was run")


def _of_batch(log: Log, report: Report) -> Iterator[str]:
    asked = report.scenario.get("training", {}).get("global_batch_size")
    if log.batch is not None and asked is not None and log.batch != asked:
        yield f"{BATCH} {log.batch:,}, the job has {asked:,}"
