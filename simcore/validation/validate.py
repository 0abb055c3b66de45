"""Validation: errors of simulated memory against measured runs, by group and quantity, verdicts, and gaps.

[Note: what counts once]
Rows whose scenarios differ only in the number of microbatches, and that have the same bytes, are one observation: some
sources read memory once and print it with several batch sizes. Equal scenarios are simulated once.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from simcore.inputs.loading import Entry
from simcore.results.report import RankReport, Report
from simcore.validation.as_published import AsPublished, as_published, with_published
from simcore.validation.gaps import Gap, NotCompared, gaps_of, not_compared
from simcore.validation.noise import Run, noise_by_source
from simcore.validation.runs import QUANTITIES, Measured, Reading, layout_of
from simcore.validation.step_times import Timing, timed_layouts, timing
from simcore.validation.tolerance import (
    Judged,
    Pair,
    Told,
    judge_allocated,
    judge_reserved,
    judge_verdicts,
    median,
    percentile,
)

__all__ = ["Compared", "Summary", "Validation", "Verdicts", "layouts", "validate"]

_MOST_WORST: Final = 10


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Compared(_Frozen):
    """One measured number of bytes next to the simulated one; `rows`: ids of the runs that it stands for.

    `rank`: its number, "last", or "max" over all. `low_bytes` to `high_bytes`: simulated interval. `error`: simulated
    over measured, less 1.
    """

    group: str
    quantity: str
    framework: str
    rows: tuple[str, ...]
    rank: int | str
    measured_bytes: int
    simulated_bytes: int
    low_bytes: int
    high_bytes: int
    error: float


class Summary(_Frozen):
    """Errors of one quantity in one group of runs, as shares of the measured value.

    `num_readings`: readings of all runs; `num_distinct`: of different observations; `num_modelled`: of these, compared.
    `median`, `percentile_90`: of errors without their sign, None if none was compared; `bias`: the median error with
    its sign; `worst`: id of a run with `worst_error`. `noise`: median distance of readings of one scenario from their
    median, None where no scenario was read twice.
    """

    group: str
    quantity: str
    num_readings: int
    num_distinct: int
    num_modelled: int
    median: float | None
    percentile_90: float | None
    bias: float | None
    worst: str
    worst_error: float | None
    noise: float | None


class Verdicts(_Frozen):
    """Counts of observations (equal runs count once) whose measured verdict is `measured`, by simulated verdict.

    `wrong`: id of the first run of each observation with the opposite simulated verdict; an unsure one is not wrong.
    """

    measured: Literal["fits", "oom"]
    told_fits: int
    told_unsure: int
    told_oom: int
    not_modelled: int
    wrong: tuple[str, ...]


class Validation(_Frozen):
    """Result of a comparison with measured runs: of memory, and of step `time`.

    `judged`: tolerances of memory; `worst`: the ten numbers with the largest errors; `gaps`: reasons for missing
    answers, the most frequent first; `compared`: all numbers with an answer. `not_compared`: every run that lacks an
    answer of memory or of time, or was set aside, by its reason; `as_published`: those of which something was inferred
    from the reading itself, by their configurations.
    """

    summaries: tuple[Summary, ...]
    verdicts: tuple[Verdicts, ...]
    judged: tuple[Judged, ...]
    worst: tuple[Compared, ...]
    gaps: tuple[Gap, ...]
    compared: tuple[Compared, ...]
    time: Timing
    not_compared: tuple[NotCompared, ...]
    as_published: tuple[AsPublished, ...]

    @property
    def is_within(self) -> bool:
        """Tells whether every tolerance that could be judged is kept; False if none could be."""
        judged = (*self.judged, *self.time.judged)
        return bool(judged) and all(judged_tolerance.is_kept for judged_tolerance in judged)


@dataclass(frozen=True, slots=True)
class _Observation:
    """Rows that count once; `report` is of their scenario, None without one."""

    rows: tuple[Measured, ...]
    report: Report | None

    @property
    def first(self) -> Measured:
        return self.rows[0]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(measured.row.id for measured in self.rows)

    def readings(self) -> Iterator[tuple[Reading, Compared | None]]:
        """Every reading with its comparison, None without one."""
        for reading in self.first.row.readings:
            yield reading, _compared(self, reading)


def layouts(measured: Sequence[Measured]) -> list[Entry]:
    """Scenarios of measured runs to simulate, equal ones once.

    One for each observation of memory (runs that differ only in the number of microbatches are one), and all whose time
    was measured; last those of configurations that did not run as they were published.
    """
    distinct: dict[str, Entry] = {}
    for some in (measured, with_published(measured)):
        for rows in _together(some):
            if rows[0].entry:
                distinct.setdefault(layout_of(rows[0].entry), rows[0].entry)
        for entry in timed_layouts(some):
            distinct.setdefault(layout_of(entry), entry)
    return list(distinct.values())


def validate(measured: Sequence[Measured], reports: Mapping[str, Report]) -> Validation:
    """Comparison of measured runs with simulated ones, of memory and of step time.

    `reports`: results of the scenarios of `layouts`, by the text that `layout_of` gives.
    """
    observations = _observations(measured, reports)
    compared = [comparison for observation in observations for _, comparison in observation.readings() if comparison]
    verdicts = tuple(_verdicts(observations, word) for word in _WORDS)
    gaps, time, noise = tuple(_gaps(observations)), timing(measured, reports), _noise(measured)
    return Validation(
        summaries=tuple(_summaries(observations, noise)), verdicts=verdicts,
        judged=tuple(_judged(compared, verdicts, noise)),
        worst=tuple(sorted(compared, key=lambda c: -abs(c.error))[:_MOST_WORST]), gaps=gaps, compared=tuple(compared),
        time=time, not_compared=tuple(not_compared(gaps, time.gaps, _aside(measured))),
        as_published=tuple(_as_published(measured, reports)))


def _observations(measured: Iterable[Measured], reports: Mapping[str, Report]) -> list[_Observation]:
    return [_Observation(rows, reports[layout_of(rows[0].entry)] if rows[0].entry else None)
            for rows in _together(measured)]


def _as_published(measured: Iterable[Measured], reports: Mapping[str, Report]) -> list[AsPublished]:
    rows = with_published(measured)
    memory = ((row, comparison.error) for observation in _observations(rows, reports)
              for reading, comparison in observation.readings()
              if comparison and reading.of in ("allocated_peak", "allocated_peak_first") for row in observation.ids)
    time = ((row, timed.error) for timed in timing(rows, reports).timed for row in timed.rows)
    return as_published(rows, memory, time)


def _aside(measured: Iterable[Measured]) -> list[Gap]:
    """Runs with neither memory nor time to compare, by the reason why."""
    return gaps_of((f"no scenario: {row.row.not_modelled}", row.row.group, row.row.id) for row in measured
                   if not row.row.read_memory and row.row.step_s is None)


_WORDS: Final[tuple[Literal["fits", "oom"], ...]] = ("oom", "fits")


def _together(measured: Iterable[Measured]) -> list[tuple[Measured, ...]]:
    groups: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
    for row in (each for each in measured if each.row.read_memory):
        groups[row.row.group, _microbatch(row), row.row.readings, row.row.verdict].append(row)
    return [tuple(rows) for rows in groups.values()]


def _microbatch(measured: Measured) -> str:
    """Text of the scenario without its number of microbatches; a row without a scenario is unique."""
    if measured.entry is None or measured.entry.scenario is None:
        return measured.row.id
    scenario = json.loads(layout_of(measured.entry))
    scenario["training"]["global_batch_size"] = None
    return json.dumps(scenario)


class _Interval(NamedTuple):
    """Our interval for a quantity, in bytes; `middle`: the most likely value."""

    low: int
    middle: int
    high: int


# ---- one reading ----------------------------------------------------------------------------------------------------
def _compared(observation: _Observation, reading: Reading) -> Compared | None:
    report = observation.report
    interval = _simulated(report, reading) if report else None
    if report is None or interval is None:
        return None
    return Compared(
        group=observation.first.row.group, quantity=reading.of, framework=str(report.scenario["framework"]),
        rows=observation.ids, rank=reading.rank, measured_bytes=reading.bytes, simulated_bytes=interval.middle,
        low_bytes=interval.low, high_bytes=interval.high, error=interval.middle / reading.bytes - 1)


def _simulated(report: Report, reading: Reading) -> _Interval | None:
    """Interval of the same quantity on the same rank; None if a result has no such number."""
    intervals = [interval for rank in _ranks(report, reading.rank) if (interval := _INTERVALS[reading.of](rank))]
    return max(intervals, key=lambda interval: interval.middle, default=None)


def _ranks(report: Report, wanted: int | str) -> list[RankReport]:
    if wanted == "max":
        return list(report.ranks)
    last = max((_span(text).stop - 1 for rank in report.ranks for text in rank.ranks), default=0)
    number = last if wanted == "last" else int(wanted)
    return [rank for rank in report.ranks if any(number in _span(text) for text in rank.ranks)]


def _span(text: str) -> range:
    """Ranks of a text such as `7`, `0-62` or `0-131071:64`."""
    ends, _, stride = text.partition(":")
    first, _, last = ends.partition("-")
    step = int(stride or 1)
    return range(int(first), int(first) + (int(last or first) - int(first)) // step * step + 1, step)


def _exactly(num_bytes: int) -> _Interval:
    return _Interval(num_bytes, num_bytes, num_bytes)


def _allocated(rank: RankReport) -> _Interval | None:
    """Allocated peak of a full run: of a later step, or of the first one."""
    return _exactly(max(rank.peak.allocated_bytes, rank.peak.first_step_bytes or 0)) if rank.peak else None


def _end(rank: RankReport) -> _Interval | None:
    return None if rank.end_bytes is None else _exactly(rank.end_bytes)


def _device(rank: RankReport) -> _Interval | None:
    if rank.peak is None:
        return None
    peak = rank.peak
    cache = max(0, peak.reserved_bytes + sum(peak.outside.values()) - peak.device_bytes)  # a driver counts it too
    return _Interval(peak.band_bytes[0], peak.device_bytes + cache, peak.band_bytes[1] + cache)


def _reserved(rank: RankReport) -> _Interval | None:
    if rank.peak is None:
        return None
    low, high = rank.peak.reserved_band_bytes
    return _Interval(low, rank.peak.reserved_bytes, high)


def _first(rank: RankReport) -> _Interval | None:
    return _exactly(rank.peak.first_step_bytes) if rank.peak and rank.peak.first_step_bytes else None


_INTERVALS: Final[dict[str, Callable[[RankReport], _Interval | None]]] = {
    "allocated_peak": _allocated, "allocated_peak_first": _first, "allocated_end": _end,
    "reserved_peak": _reserved, "device_peak": _device}


# ---- many -----------------------------------------------------------------------------------------------------------
def _noise(measured: Iterable[Measured]) -> Mapping[str, float]:
    """Noise of a group's readings of a quantity on a rank, by "group quantity", over releases of the software too.

    Groups that read no scenario twice are left out.
    """
    runs = (Run(f"{row.row.group} {reading.of}", (layout_of(row.entry), reading.rank), row.row.release, reading.bytes)
            for row in measured if row.entry for reading in row.row.readings)
    return {name: noise.equal for name, noise in noise_by_source(runs).items() if noise.equal is not None}


def _summaries(observations: Sequence[_Observation], noise: Mapping[str, float]) -> Iterator[Summary]:
    read: dict[tuple[str, str], list[tuple[int, Compared | None]]] = defaultdict(list)
    for observation in observations:
        for reading, comparison in observation.readings():
            read[observation.first.row.group, reading.of].append((len(observation.rows), comparison))
    for group, quantity in sorted(read, key=lambda key: (key[0], QUANTITIES.index(key[1]))):
        yield _summary(group, quantity, read[group, quantity], noise.get(f"{group} {quantity}"))


def _summary(group: str, quantity: str, read: Sequence[tuple[int, Compared | None]], noise: float | None) -> Summary:
    comparisons = [compared for _, compared in read if compared]
    errors = [compared.error for compared in comparisons]
    sizes = [abs(error) for error in errors]
    worst = max(comparisons, key=lambda compared: abs(compared.error), default=None)
    return Summary(
        group=group, quantity=quantity, num_readings=sum(rows for rows, _ in read), num_distinct=len(read),
        num_modelled=len(comparisons), median=median(sizes), percentile_90=percentile(sizes, 90), bias=median(errors),
        worst=worst.rows[0] if worst else "", worst_error=worst.error if worst else None, noise=noise)


def _verdicts(observations: Sequence[_Observation], word: Literal["fits", "oom"]) -> Verdicts:
    asked = [observation for observation in observations if observation.first.row.verdict == word]
    counts = Counter(observation.report.verdict if observation.report else None for observation in asked)
    wrong = [observation.ids[0] for observation in asked
             if observation.report and observation.report.verdict not in (word, "unsure", None)]
    return Verdicts(measured=word, told_fits=counts["fits"], told_unsure=counts["unsure"], told_oom=counts["oom"],
                    not_modelled=counts[None],                     wrong=tuple(wrong))


def _gaps(observations: Sequence[_Observation]) -> list[Gap]:
    return gaps_of((reason, row.row.group, row.row.id) for observation in observations
                   for reason in _reasons(observation) for row in observation.rows)


def _reasons(observation: _Observation) -> list[str]:
    row, report = observation.first.row, observation.report
    if report is None:
        return [f"no scenario: {row.not_modelled}"]
    if report.status == "ok":
        return sorted({f"{reading.of}: a result has no such number"
                       for reading, comparison in observation.readings() if comparison is None})
    start = "" if report.status == "error" else f"{report.status}: "
    return [f"{start}{problem.message}" for problem in report.problems]


def _judged(compared: Sequence[Compared], verdicts: Sequence[Verdicts], noise: Mapping[str, float]
            ) -> Iterator[Judged]:
    read: dict[str, list[Pair]] = defaultdict(list)
    for comparison in compared:
        read[comparison.quantity].append(
            Pair(comparison.framework, comparison.measured_bytes, comparison.simulated_bytes, comparison.low_bytes,
                 comparison.high_bytes, noise.get(f"{comparison.group} {comparison.quantity}")))
    for quantity, pairs in read.items():
        if quantity.startswith("allocated"):
            yield from judge_allocated(quantity, pairs)
    yield from judge_reserved(read["reserved_peak"])
    counted = {comparison.measured: Told(comparison.told_fits, comparison.told_unsure, comparison.told_oom)
               for comparison in verdicts}
    yield from judge_verdicts(counted["oom"], counted["fits"])
