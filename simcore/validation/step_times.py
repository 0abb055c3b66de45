"""Measured steps beside simulated ones: errors of step time by group, GPU and precision, and what has no answer.

[Note: what counts once]
Rows of one group with the same scenario and the same release of the software are one observation, of the median of
their times. The same scenario under several releases is a *configuration*; it is stable where its slowest release
takes at most `STABLE` longer than its fastest. Runs of continuous integration (golden values) train tiny models in
many layouts, so what is judged with them is judged without them too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from simcore.inputs.loading import Entry
from simcore.results.report import Report, StepTime
from simcore.validation.left_out import left_out
from simcore.validation.runs import Kind, Measured, layout_of
from simcore.validation.tolerance import STABLE, Judged, Lap, judge_times, median, percentile

__all__ = ["Gap", "Timed", "Timing", "TimingSummary", "timed_layouts", "timing"]

GOLDEN: Final = "mcore-golden"
"""How groups of Megatron-LM's golden values begin."""
_MOST_WORST: Final = 10


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Timed(_Frozen):
    """One observation of a step; `rows`: ids of the rows that it stands for.

    `stable`: whether releases of its configuration are near each other. `verdict`: what we say of its memory.
    """

    group: str
    kind: Kind
    topology: str
    precision: str
    framework: str
    model: str
    release: str | None
    rows: tuple[str, ...]
    measured_s: float
    simulated_s: float
    error: float
    stable: bool
    verdict: str | None


class TimingSummary(_Frozen):
    """Observations of a group on one topology in one precision: errors are shares of what was measured.

    `num_rows` were measured, `num_distinct` of them count, `num_modelled` of these have an answer, and of these memory
    is said not to be enough for `num_oom`. `bias` is the median error with its sign. `group_left_out`: the median error
    of the group on all machines by constants fitted without it; `topology_left_out`: of that machine's rows without any
    of them (`left_out.py`).
    """

    kind: Kind
    group: str
    topology: str
    precision: str
    num_rows: int
    num_distinct: int
    num_modelled: int
    num_oom: int
    median: float | None
    percentile_90: float | None
    bias: float | None
    group_left_out: float | None
    topology_left_out: float | None
    worst: str
    worst_error: float | None


class Gap(_Frozen):
    """Why rows have no answer."""

    reason: str
    num_rows: int
    groups: tuple[str, ...]


class Timing(_Frozen):
    """Everything that a comparison of step times found."""

    summaries: tuple[TimingSummary, ...]
    judged: tuple[Judged, ...]
    worst: tuple[Timed, ...]
    gaps: tuple[Gap, ...]
    timed: tuple[Timed, ...]


@dataclass(frozen=True, slots=True)
class _Observation:
    """Rows that count once; `report` is of their scenario, None where there is none."""

    rows: tuple[Measured, ...]
    report: Report | None
    stable: bool

    @property
    def first(self) -> Measured:
        return self.rows[0]

    @property
    def place(self) -> tuple[Kind, str, str, str]:
        """Kind, group, topology and precision; the last two empty where there is no scenario."""
        row = self.first.row
        scenario = self.first.entry.scenario if self.first.entry else None
        if scenario is None:
            return row.kind, row.group, "", ""
        asked = scenario.normalised()
        return row.kind, row.group, _named(asked["topology"], "file"), _precision(asked)

    @property
    def measured_s(self) -> float:
        return median([one.row.step_s for one in self.rows if one.row.step_s]) or 0.0


def timed_layouts(measured: Iterable[Measured]) -> list[Entry]:
    """The scenarios to simulate with their time, each once."""
    distinct: dict[str, Entry] = {}
    for one in measured:
        if one.entry and one.row.step_s is not None:
            distinct.setdefault(layout_of(one.entry), one.entry)
    return list(distinct.values())


def timing(measured: Iterable[Measured], reports: Mapping[str, Report]) -> Timing:
    """Compare rows that have a step time with the reports of `timed_layouts`, by `layout_of`."""
    observations = list(_observations([one for one in measured if one.row.step_s is not None], reports))
    timed = [(one, _timed(one)) for one in observations]
    found = [laid for _, laid in timed if laid]
    return Timing(
        summaries=tuple(_summaries(timed)), judged=tuple(judge_times([_lap(one) for one in found])),
        worst=tuple(sorted(found, key=lambda one: -abs(one.error))[:_MOST_WORST]),
        gaps=tuple(_gaps([one for one, laid in timed if laid is None])), timed=tuple(found))


def _observations(measured: Sequence[Measured], reports: Mapping[str, Report]) -> Iterator[_Observation]:
    configurations: dict[tuple[str, str], dict[str | None, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for one in measured:
        layout = layout_of(one.entry) if one.entry else one.row.id
        configurations[one.row.group, layout][one.row.release].append(one)
    for (_, layout), releases in configurations.items():
        times = [median([one.row.step_s or 0.0 for one in rows]) or 0.0 for rows in releases.values()]
        stable = max(times) <= min(times) * (1 + STABLE)
        for rows in releases.values():
            yield _Observation(tuple(rows), reports.get(layout), stable)


def _timed(one: _Observation) -> Timed | None:
    if one.report is None or one.report.time is None:
        return None
    kind, group, topology, precision = one.place
    scenario, simulated = one.report.scenario, _simulated(one.report.time, one.first.row.timed)
    return Timed(
        group=group, kind=kind, topology=topology, precision=precision, framework=str(scenario["framework"]),
        model=_named(scenario["model"], "config"), release=one.first.row.release,
        rows=tuple(measured.row.id for measured in one.rows), measured_s=one.measured_s, simulated_s=simulated,
        error=simulated / one.measured_s - 1, stable=one.stable, verdict=one.report.verdict)


def _simulated(time: StepTime, timed: str) -> float:
    return time.step_s if timed == "step" else time.step_s - time.optimizer_s


def _named(given: Any, key: str) -> str:
    """A name, or a mapping that has it under `key`."""
    return str(given[key] if isinstance(given, dict) else given)


def _precision(scenario: Mapping[str, Any]) -> str:
    """The format in which linears compute; fp8 in blocks of 32 is `mxfp8`, fp4 `nvfp4`: there is no other."""
    compute = str(scenario["training"]["precision"]["compute"])
    recipe = scenario["framework_options"].get("fp8_recipe")
    return "mxfp8" if (compute, recipe) == ("fp8", "mxfp8") else "nvfp4" if compute == "fp4" else compute


def _lap(one: Timed) -> Lap:
    return Lap(abs(one.error), one.kind, one.precision, hybrid=one.model.startswith("nemotron"),
               golden=one.group.startswith(GOLDEN), stable=one.stable)


def _summaries(timed: Sequence[tuple[_Observation, Timed | None]]) -> Iterator[TimingSummary]:
    placed: dict[tuple[Kind, str, str, str], list[tuple[_Observation, Timed | None]]] = defaultdict(list)
    for one, laid in timed:
        placed[one.place].append((one, laid))
    for place in sorted(placed):
        yield _summary(place, placed[place])


def _summary(place: tuple[Kind, str, str, str], timed: Sequence[tuple[_Observation, Timed | None]]) -> TimingSummary:
    kind, group, topology, precision = place
    found = [laid for _, laid in timed if laid]
    errors = [laid.error for laid in found]
    sizes = [abs(error) for error in errors]
    worst = max(found, key=lambda laid: abs(laid.error), default=None)
    return TimingSummary(
        kind=kind, group=group, topology=topology, precision=precision, num_rows=sum(len(one.rows) for one, _ in timed),
        num_distinct=len(timed), num_modelled=len(found), num_oom=sum(laid.verdict == "oom" for laid in found),
        median=median(sizes), percentile_90=percentile(sizes, 90), bias=median(errors),
        group_left_out=left_out("group", group), topology_left_out=left_out("gpu", topology),
        worst=worst.rows[0] if worst else "", worst_error=worst.error if worst else None)


def _gaps(lacking: Sequence[_Observation]) -> Iterator[Gap]:
    """The most frequent reasons first; a row counts under each of its reasons."""
    rows: Counter[str] = Counter()
    groups: dict[str, set[str]] = defaultdict(set)
    for one in lacking:
        for reason in _reasons(one):
            rows[reason] += len(one.rows)
            groups[reason].add(one.first.row.group)
    for reason, num_rows in rows.most_common():
        yield Gap(reason=reason, num_rows=num_rows, groups=tuple(sorted(groups[reason])))


def _reasons(one: _Observation) -> list[str]:
    if one.first.entry is None:
        return [f"no scenario: {one.first.row.not_modelled}"]
    if one.report is None or one.report.status == "ok":
        return ["simulated without its time"]
    start = "" if one.report.status == "error" else f"{one.report.status}: "
    return [f"{start}{problem.message}" for problem in one.report.problems]
