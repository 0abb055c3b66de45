"""What was measured beside what is simulated: errors by group and quantity, verdicts, and what has no answer yet.

[Note: what counts once]
Rows whose scenarios differ in nothing but the number of microbatches, and that read the same bytes, are one
observation: some sources read memory once and print it beside several batch sizes. Equal scenarios are simulated once.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from simcore.inputs.loading import Entry
from simcore.results.report import RankReport, Report
from simcore.validation.runs import QUANTITIES, Measured, Reading, layout_of
from simcore.validation.step_times import Gap, Timing, timed_layouts, timing
from simcore.validation.tolerance import (
    Judged,
    Pair,
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
    """One observation of one quantity; `rows`: ids of the rows that it stands for. `low` to `high`: our interval."""

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
    """A quantity of a group: errors are shares of what was measured, `bias` is their median with its sign.

    `num_readings` were made, `num_distinct` of them are different, `num_modelled` of these could be compared.
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


class Verdicts(_Frozen):
    """Observations with one measured verdict, by what we say of them."""

    measured: Literal["fits", "oom"]
    told_fits: int
    told_oom: int
    not_modelled: int
    wrong: tuple[str, ...]


class Validation(_Frozen):
    """Everything that a comparison with measured runs found: of memory, and of `time`."""

    summaries: tuple[Summary, ...]
    verdicts: tuple[Verdicts, ...]
    judged: tuple[Judged, ...]
    worst: tuple[Compared, ...]
    gaps: tuple[Gap, ...]
    compared: tuple[Compared, ...]
    time: Timing

    @property
    def is_within(self) -> bool:
        """Whether every tolerance that could be judged is kept; False when none could be."""
        judged = (*self.judged, *self.time.judged)
        return bool(judged) and all(one.is_kept for one in judged)


@dataclass(frozen=True, slots=True)
class _Observation:
    """Rows that count once; `report` is of their scenario, None where there is none."""

    rows: tuple[Measured, ...]
    report: Report | None

    @property
    def first(self) -> Measured:
        return self.rows[0]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(measured.row.id for measured in self.rows)

    def readings(self) -> Iterator[tuple[Reading, Compared | None]]:
        """Every reading, with what we say beside it."""
        for reading in self.first.row.readings:
            yield reading, _compared(self, reading)


def layouts(measured: Sequence[Measured]) -> list[Entry]:
    """The scenarios to simulate: one of each observation of memory, and all whose time was measured, each once."""
    distinct: dict[str, Entry] = {}
    for rows in _together(measured):
        if rows[0].entry:
            distinct.setdefault(layout_of(rows[0].entry), rows[0].entry)
    for entry in timed_layouts(measured):
        distinct.setdefault(layout_of(entry), entry)
    return list(distinct.values())


def validate(measured: Sequence[Measured], reports: Mapping[str, Report]) -> Validation:
    """Compare rows with the reports of `layouts`, by `layout_of`."""
    observations = [_Observation(rows, reports[layout_of(rows[0].entry)] if rows[0].entry else None)
                    for rows in _together(measured)]
    compared = [found for one in observations for _, found in one.readings() if found]
    verdicts = tuple(_verdicts(observations, word) for word in _WORDS)
    return Validation(
        summaries=tuple(_summaries(observations)), verdicts=verdicts, judged=tuple(_judged(compared, verdicts)),
        worst=tuple(sorted(compared, key=lambda c: -abs(c.error))[:_MOST_WORST]), gaps=tuple(_gaps(observations)),
        compared=tuple(compared), time=timing(measured, reports))


_WORDS: Final[tuple[Literal["fits", "oom"], ...]] = ("oom", "fits")


def _together(measured: Iterable[Measured]) -> list[tuple[Measured, ...]]:
    groups: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
    for one in (each for each in measured if each.row.read_memory):
        groups[one.row.group, _microbatch(one), one.row.readings, one.row.verdict].append(one)
    return [tuple(rows) for rows in groups.values()]


def _microbatch(measured: Measured) -> str:
    """The scenario without its number of microbatches; a row without a scenario is like no other."""
    if measured.entry is None or measured.entry.scenario is None:
        return measured.row.id
    scenario = json.loads(layout_of(measured.entry))
    scenario["training"]["global_batch_size"] = None
    return json.dumps(scenario)


# ---- one reading ----------------------------------------------------------------------------------------------------
def _compared(observation: _Observation, reading: Reading) -> Compared | None:
    report = observation.report
    found = _simulated(report, reading) if report else None
    if report is None or found is None:
        return None
    low, middle, high = found
    return Compared(
        group=observation.first.row.group, quantity=reading.of, framework=str(report.scenario["framework"]),
        rows=observation.ids, rank=reading.rank, measured_bytes=reading.bytes, simulated_bytes=middle, low_bytes=low,
        high_bytes=high, error=middle / reading.bytes - 1)


def _simulated(report: Report, reading: Reading) -> tuple[int, int, int] | None:
    """Low, middle and high of the same quantity on the same rank; None where a result has no such number."""
    found = [number for rank in _ranks(report, reading.rank) if (number := _NUMBER[reading.of](rank))]
    return max(found, key=lambda number: number[1], default=None)


def _ranks(report: Report, wanted: int | str) -> list[RankReport]:
    if wanted == "max":
        return list(report.ranks)
    last = max((_span(text).stop - 1 for rank in report.ranks for text in rank.ranks), default=0)
    number = last if wanted == "last" else int(wanted)
    return [rank for rank in report.ranks if any(number in _span(text) for text in rank.ranks)]


def _span(text: str) -> range:
    """`7`, `0-62` or `0-131071:64`, as reports write ranks."""
    ends, _, stride = text.partition(":")
    first, _, last = ends.partition("-")
    step = int(stride or 1)
    return range(int(first), int(first) + (int(last or first) - int(first)) // step * step + 1, step)


def _allocated(rank: RankReport) -> tuple[int, int, int] | None:
    """Of a whole run: of a later step, or of the first one."""
    return (max(rank.peak.allocated_bytes, rank.peak.first_step_bytes or 0),) * 3 if rank.peak else None


def _end(rank: RankReport) -> tuple[int, int, int] | None:
    return None if rank.end_bytes is None else (rank.end_bytes,) * 3


def _device(rank: RankReport) -> tuple[int, int, int] | None:
    if rank.peak is None:
        return None
    peak = rank.peak
    cache = max(0, peak.reserved_bytes + sum(peak.outside.values()) - peak.device_bytes)  # a driver counts it too
    return peak.band_bytes[0], peak.device_bytes + cache, peak.band_bytes[1] + cache


def _reserved(rank: RankReport) -> tuple[int, int, int] | None:
    if rank.peak is None:
        return None
    low, high = rank.peak.reserved_band_bytes
    return low, rank.peak.reserved_bytes, high


def _first(rank: RankReport) -> tuple[int, int, int] | None:
    return (rank.peak.first_step_bytes,) * 3 if rank.peak and rank.peak.first_step_bytes else None


_NUMBER: Final[dict[str, Callable[[RankReport], tuple[int, int, int] | None]]] = {
    "allocated_peak": _allocated, "allocated_peak_first": _first, "allocated_end": _end,
    "reserved_peak": _reserved, "device_peak": _device}


# ---- many -----------------------------------------------------------------------------------------------------------
def _summaries(observations: Sequence[_Observation]) -> Iterator[Summary]:
    read: dict[tuple[str, str], list[tuple[int, Compared | None]]] = defaultdict(list)
    for one in observations:
        for reading, found in one.readings():
            read[one.first.row.group, reading.of].append((len(one.rows), found))
    for group, quantity in sorted(read, key=lambda key: (key[0], QUANTITIES.index(key[1]))):
        yield _summary(group, quantity, read[group, quantity])


def _summary(group: str, quantity: str, read: Sequence[tuple[int, Compared | None]]) -> Summary:
    found = [compared for _, compared in read if compared]
    errors = [compared.error for compared in found]
    sizes = [abs(error) for error in errors]
    worst = max(found, key=lambda compared: abs(compared.error), default=None)
    return Summary(
        group=group, quantity=quantity, num_readings=sum(rows for rows, _ in read), num_distinct=len(read),
        num_modelled=len(found), median=median(sizes), percentile_90=percentile(sizes, 90), bias=median(errors),
        worst=worst.rows[0] if worst else "", worst_error=worst.error if worst else None)


def _verdicts(observations: Sequence[_Observation], word: Literal["fits", "oom"]) -> Verdicts:
    asked = [one for one in observations if one.first.row.verdict == word]
    told = Counter(one.report.verdict if one.report else None for one in asked)
    wrong = [one.ids[0] for one in asked if one.report and one.report.verdict not in (word, None)]
    return Verdicts(measured=word, told_fits=told["fits"], told_oom=told["oom"], not_modelled=told[None],
                    wrong=tuple(wrong))


def _gaps(observations: Sequence[_Observation]) -> Iterator[Gap]:
    """The most frequent reasons first; a row counts under each of its reasons."""
    rows: Counter[str] = Counter()
    groups: dict[str, set[str]] = defaultdict(set)
    for one in observations:
        for reason in _reasons(one):
            rows[reason] += len(one.rows)
            groups[reason].add(one.first.row.group)
    for reason, num_rows in rows.most_common():
        yield Gap(reason=reason, num_rows=num_rows, groups=tuple(sorted(groups[reason])))


def _reasons(observation: _Observation) -> list[str]:
    row, report = observation.first.row, observation.report
    if report is None:
        return [f"no scenario: {row.not_modelled}"]
    if report.status == "ok":
        return sorted({f"{reading.of}: a result has no such number"
                       for reading, found in observation.readings() if found is None})
    start = "" if report.status == "error" else f"{report.status}: "
    return [f"{start}{problem.message}" for problem in report.problems]


def _judged(compared: Sequence[Compared], verdicts: Sequence[Verdicts]) -> Iterator[Judged]:
    read: dict[str, list[Pair]] = defaultdict(list)
    for one in compared:
        read[one.quantity].append(
            Pair(one.framework, one.measured_bytes, one.simulated_bytes, one.low_bytes, one.high_bytes))
    for quantity, pairs in read.items():
        if quantity.startswith("allocated"):
            yield from judge_allocated(quantity, pairs)
    yield from judge_reserved(read["reserved_peak"])
    counted = {one.measured: (len(one.wrong), one.told_fits + one.told_oom) for one in verdicts}
    yield from judge_verdicts(counted["oom"], counted["fits"])
