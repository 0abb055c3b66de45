"""Errors of simulated step times against measured ones, by group, GPU and precision, and gaps without an answer.

[Note: what counts once]
Rows of one group with the same scenario and the same release of the software are one observation, with the median of
their times. The same scenario under several releases is a *configuration*; it is stable if its slowest release takes
at most `STABLE` longer than its fastest. Runs of continuous integration (golden values) train tiny models in
many layouts, so tolerances are judged with and without them.

Every error has two values: by the whole fit of constants, and by a fit that had not seen the run's group
(`left_out.py`). The second judges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from simcore.inputs.loading import Entry
from simcore.models.names import find
from simcore.results.report import Report, StepTime
from simcore.validation.gaps import Gap, gaps_of
from simcore.validation.left_out import GroupLeftOut, groups_left_out, left_out, ratio_left_out
from simcore.validation.noise import Noise, Run, noise_by_source
from simcore.validation.runs import Kind, Measured, layout_of
from simcore.validation.tolerance import STABLE, Judged, Lap, judge_times, median, percentile

__all__ = ["Timed", "Timing", "TimingSummary", "timed_layouts", "timing"]

GOLDEN: Final = "mcore-golden"
"""First part of the names of groups of Megatron-LM's golden values."""
MLPERF: Final = "mlperf"
"""First part of the names of groups of MLPerf's rounds."""
_MOST_WORST: Final = 10


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Timed(_Frozen):
    """One observation: measured (median of its runs) and simulated step time; `rows`: ids of these runs.

    Both without the optimizer if that was not measured. `error`: simulated over measured, less 1; `left_out_error`: the
    same by a fit without the run's group, equal to `error` for a run that was in no fit (`in_fit` False). `stable`:
    releases of the software have similar times (`STABLE`). `verdict`: simulated verdict on its memory.
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
    left_out_error: float
    in_fit: bool
    stable: bool
    verdict: str | None


class TimingSummary(_Frozen):
    """Errors of step time, as shares of the measured one, of one group of runs on one topology in one precision.

    `num_rows`: measured runs; `num_distinct`: observations among them (equal ones count once); `num_modelled`:
    observations with an answer; `num_oom`: of these, with the verdict oom. `median`, `percentile_90`: of errors without
    their sign, None without an answer; `bias`: the median error with its sign. `left_out`, `left_out_90` and
    `left_out_bias`: the same by fits without the rows' groups, each left out by itself. `noise`: that of the source.
    `group_left_out`: the median error of the group on all machines with constants fitted without it;
    `topology_left_out`: of that machine's rows with constants fitted without any of them (`left_out.py`). `worst`: id
    of a row with `worst_error`.
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
    left_out: float | None
    left_out_90: float | None
    left_out_bias: float | None
    noise: Noise | None
    group_left_out: float | None
    topology_left_out: float | None
    worst: str
    worst_error: float | None


class Timing(_Frozen):
    """Result of a comparison of step times: errors by group, tolerances, largest errors, missing answers.

    `worst`: the ten observations with the largest errors, largest first; `gaps`: most frequent reason first; `timed`:
    all observations with an answer; `together`: groups that were left out of the fit, each with its errors and the
    factors that rest on it alone; `noise`: noise of every source of times.
    """

    summaries: tuple[TimingSummary, ...]
    judged: tuple[Judged, ...]
    worst: tuple[Timed, ...]
    gaps: tuple[Gap, ...]
    timed: tuple[Timed, ...]
    together: tuple[GroupLeftOut, ...]
    noise: tuple[Noise, ...]


class _Place(NamedTuple):
    """Rows that are summarised together; `topology` and `precision` are empty without a scenario."""

    kind: Kind
    group: str
    topology: str
    precision: str


@dataclass(frozen=True, slots=True)
class _Observation:
    """Rows that count once; `report` is of their scenario, None without one."""

    rows: tuple[Measured, ...]
    report: Report | None
    stable: bool

    @property
    def first(self) -> Measured:
        return self.rows[0]

    @property
    def place(self) -> _Place:
        """Place of the rows in the summaries."""
        row = self.first.row
        scenario = self.first.entry.scenario if self.first.entry else None
        if scenario is None:
            return _Place(row.kind, row.group, "", "")
        asked = scenario.normalised()
        return _Place(row.kind, row.group, _named(asked["topology"], "file"), _precision(asked))

    @property
    def measured_s(self) -> float:
        return median([measured.row.step_s for measured in self.rows if measured.row.step_s]) or 0.0


def timed_layouts(measured: Iterable[Measured]) -> list[Entry]:
    """Scenarios of all measured runs with a step time, equal ones once, in order of first appearance."""
    distinct: dict[str, Entry] = {}
    for row in measured:
        if row.entry and row.row.step_s is not None:
            distinct.setdefault(layout_of(row.entry), row.entry)
    return list(distinct.values())


def timing(measured: Iterable[Measured], reports: Mapping[str, Report]) -> Timing:
    """Comparison of measured step times with simulated ones; runs without a step time are left out.

    `reports`: results of the scenarios of `timed_layouts`, by the text that `layout_of` gives.
    """
    rows = [item for item in measured if item.row.step_s is not None]
    observations = list(_observations(rows, reports))
    timed = [(item, _timed(item)) for item in observations]
    modelled = [laid for _, laid in timed if laid]
    noise = noise_by_source(map(_run, rows))
    sources = {row.row.group for row in rows}
    return Timing(
        summaries=tuple(_summaries(timed, noise)),
        judged=tuple(judge_times([_lap(item, noise[item.group].floor) for item in modelled])),
        worst=tuple(sorted(modelled, key=lambda item: -abs(item.error))[:_MOST_WORST]),
        gaps=tuple(_gaps([item for item, laid in timed if laid is None])), timed=tuple(modelled),
        together=tuple(group for group in groups_left_out() if group.source in sources), noise=tuple(noise.values()))


def _run(measured: Measured) -> Run:
    """A row's time as one of the runs of its configuration; alone if it has no scenario."""
    row = measured.row
    return Run(row.group, layout_of(measured.entry) if measured.entry else row.id, row.release, row.step_s or 0.0)


def _observations(measured: Sequence[Measured], reports: Mapping[str, Report]) -> Iterator[_Observation]:
    configurations: dict[tuple[str, str], dict[str | None, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for row in measured:
        layout = layout_of(row.entry) if row.entry else row.row.id
        configurations[row.row.group, layout][row.row.release].append(row)
    for (_, layout), releases in configurations.items():
        times = [median([row.row.step_s or 0.0 for row in rows]) or 0.0 for rows in releases.values()]
        stable = max(times) <= min(times) * (1 + STABLE)
        for rows in releases.values():
            yield _Observation(tuple(rows), reports.get(layout), stable)


def _timed(observation: _Observation) -> Timed | None:
    if observation.report is None or observation.report.time is None:
        return None
    kind, group, topology, precision = observation.place
    scenario, simulated = observation.report.scenario, _simulated(observation.report.time, observation.first.row.timed)
    ratio = ratio_left_out(observation.first.row.id)
    return Timed(
        group=group, kind=kind, topology=topology, precision=precision, framework=str(scenario["framework"]),
        model=_preset(_named(scenario["model"], "config")), release=observation.first.row.release,
        rows=tuple(measured.row.id for measured in observation.rows), measured_s=observation.measured_s,
        simulated_s=simulated, error=simulated / observation.measured_s - 1,
        left_out_error=simulated * (ratio or 1.0) / observation.measured_s - 1, in_fit=ratio is not None,
        stable=observation.stable, verdict=observation.report.verdict)


def _simulated(time: StepTime, timed: str) -> float:
    return time.step_s if timed == "step" else time.step_s - time.optimizer_s


def _named(value: Any, key: str) -> str:
    """A name, or the value under `key` of a mapping."""
    return str(value[key] if isinstance(value, dict) else value)


def _preset(name: str) -> str:
    """The preset's own name where a row names a model by another; else the name as it is."""
    named = find(name)
    return named.preset if named else name


def _precision(scenario: Mapping[str, Any]) -> str:
    """Format in which linears compute; fp8 in blocks of 32 is `mxfp8`, fp4 always `nvfp4`."""
    compute = str(scenario["training"]["precision"]["compute"])
    recipe = scenario["framework_options"].get("fp8_recipe")
    return "mxfp8" if (compute, recipe) == ("fp8", "mxfp8") else "nvfp4" if compute == "fp4" else compute


def _lap(timed: Timed, noise: float | None) -> Lap:
    return Lap(abs(timed.left_out_error), timed.kind, timed.precision, hybrid=timed.model.startswith("nemotron"),
               golden=timed.group.startswith(GOLDEN), stable=timed.stable, fitted=abs(timed.error), noise=noise,
               mlperf=timed.group.startswith(MLPERF))


def _summaries(timed: Sequence[tuple[_Observation, Timed | None]], noise: Mapping[str, Noise]
               ) -> Iterator[TimingSummary]:
    placed: dict[_Place, list[tuple[_Observation, Timed | None]]] = defaultdict(list)
    for observation, laid in timed:
        placed[observation.place].append((observation, laid))
    for place in sorted(placed):
        yield _summary(place, placed[place], noise[place.group])


def _summary(place: _Place, timed: Sequence[tuple[_Observation, Timed | None]], noise: Noise) -> TimingSummary:
    modelled = [laid for _, laid in timed if laid]
    errors, unseen = [laid.error for laid in modelled], [laid.left_out_error for laid in modelled]
    sizes, unseen_sizes = ([abs(error) for error in each] for each in (errors, unseen))
    worst = max(modelled, key=lambda laid: abs(laid.error), default=None)
    return TimingSummary(
        **place._asdict(), num_rows=sum(len(observation.rows) for observation, _ in timed), num_distinct=len(timed),
        num_modelled=len(modelled), num_oom=sum(laid.verdict == "oom" for laid in modelled), median=median(sizes),
        percentile_90=percentile(sizes, 90), bias=median(errors), left_out=median(unseen_sizes),
        left_out_90=percentile(unseen_sizes, 90), left_out_bias=median(unseen),
        noise=noise if noise.floor is not None else None, group_left_out=left_out("group", place.group),
        topology_left_out=left_out("gpu", place.topology), worst=worst.rows[0] if worst else "",
        worst_error=worst.error if worst else None)


def _gaps(lacking: Sequence[_Observation]) -> Iterator[Gap]:
    yield from gaps_of((reason, row.row.group, row.row.id) for observation in lacking
                       for reason in _reasons(observation) for row in observation.rows)


def _reasons(observation: _Observation) -> list[str]:
    if observation.first.entry is None:
        return [f"no scenario: {observation.first.row.not_modelled}"]
    if observation.report is None or observation.report.status == "ok":
        return ["simulated without its time"]
    start = "" if observation.report.status == "error" else f"{observation.report.status}: "
    return [f"{start}{problem.message}" for problem in observation.report.problems]
