"""A training step: microbatches lowered to programs, timed, and put into a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TypedDict

from simcore.frameworks.registry import hooks_of
from simcore.inputs.bounds import ROWS
from simcore.inputs.scenario import Scenario
from simcore.pipeline.schedule import actions, lowered_microbatches, steady_microbatches
from simcore.placement.plan import Plan
from simcore.placement.token_dispatch import top_k_of
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload, adds_in_place
from simcore.program.row_cache import settle
from simcore.results.report import Report
from simcore.simulation.afterwards import with_afterwards
from simcore.simulation.detail import with_detail, with_streams
from simcore.simulation.hosts import hosted
from simcore.simulation.random_routing import drawn
from simcore.simulation.report import report
from simcore.simulation.simulation import Simulation, placed, placed_simulation
from simcore.simulation.step_length import check_rows, num_rows, unlike
from simcore.simulation.step_memory import is_plain
from simcore.timing.step import StepLength, forward_flops, time_step

__all__ = ["Asked", "Request", "check_step", "first_num_rows", "program_of", "step_of", "training_step",
           "tried_numbers", "written_out"]


class Asked(TypedDict, total=False):
    """Keyword arguments of `simulate`; meaning and defaults are those of `Request`."""

    series: bool
    streams: bool
    detail: bool
    fold: bool
    rank: int | None
    timed: bool
    spans: int | None
    whole: bool
    postings: int


@dataclass(frozen=True, slots=True)
class Request:
    """Extent of a simulation: which ranks and quantities of a step, and how much of it the report keeps.

    `series`: keeps memory over the step too. `streams`: keeps a detail with the streams over time alone. `detail`:
    keeps both and everything else that pictures show. `fold` False simulates each rank separately. `rank`:
    simulates only this rank, exactly, without time. `timed` False: memory and traffic only. `spans`: limit of the
    intervals of the timeline that the detail keeps, over all classes of ranks, None for as many as a page can bear.
    `whole`: every microbatch is simulated one by one. `postings`: with the detail, lifetimes of allocations too;
    the number is the upper limit of their births and deaths over all classes, 0 for none.
    """

    series: bool = False
    streams: bool = False
    detail: bool = False
    fold: bool = True
    rank: int | None = None
    timed: bool = True
    spans: int | None = None
    whole: bool = False
    postings: int = 0

    @property
    def has_series(self) -> bool:
        """True if the report keeps memory over the step: `series` or `detail`."""
        return self.series or self.detail


def training_step(scenario: Scenario, request: Request) -> Report:
    """Report of one simulated training step, with as much of it as `request` asks for.

    Raises IllegalLayout, InputError or NotYet if the scenario cannot be simulated.
    """
    return step_of(placed_simulation(scenario, folded=request.fold, rank=request.rank), request)


def step_of(simulation: Simulation, request: Request) -> Report:
    """Report of one training step of a placed simulation, which then holds its programs and times.

    `request`: how much of it is simulated; classes of ranks are those of `simulation`. Raises as `training_step`.
    """
    scenario = simulation.job.scenario
    simulation.num_written = scenario.num_microbatches if request.whole else num_lowered(simulation)
    check_rows(simulation)
    try:
        _write_out(simulation, timed=request.timed and request.rank is None)
        answer = hosted(simulation, drawn(simulation, report(simulation, series=request.has_series)))
        answer = with_afterwards(simulation, answer)
        if request.detail:
            answer = with_detail(simulation, answer, request.spans, request.postings)
        elif request.streams:
            answer = with_streams(simulation, answer, request.spans)
        return unlike(simulation, answer)
    finally:
        settle()


def check_step(legal: Simulation) -> None:
    """Raises what simulating a step of a legal layout (`legal_simulation`) raises before anything is timed.

    That is NotYet for layers whose operators are missing, and InputError for a step that is too long. Operations of a
    plain training (`is_plain`) are written out for one rank of each pipeline stage: its other ranks run the same
    layers. Of any other one memory is simulated too, since evaluation and drawn routing have refusals of their own.
    """
    simulation = placed(legal)
    if not is_plain(simulation.job.scenario):
        step_of(simulation, Request(timed=False))
        return
    simulation.num_written = num_lowered(simulation)
    check_rows(simulation)
    first = {rank_class.stage: (rank_class, plan) for rank_class, plan
             in zip(reversed(simulation.classes), reversed(simulation.plans), strict=True)}
    classes, plans = zip(*first.values(), strict=True)
    with written_out(replace(simulation, classes=classes, plans=plans, programs={}), timed=False):
        pass


@contextmanager
def written_out(simulation: Simulation, *, timed: bool) -> Iterator[None]:
    """Context in which a placed simulation holds the programs of its step, and its length if `timed`.

    Raises as `training_step`.
    """
    simulation.num_written = num_lowered(simulation)
    check_rows(simulation)
    try:
        _write_out(simulation, timed=timed)
        yield
    finally:
        settle()


def first_num_rows(scenario: Scenario) -> int:
    """Estimated number of operations in a training step's programs, one of each class of ranks, as simulated at first.

    More microbatches may be added later, until their time is steady. Raises IllegalLayout, InputError or NotYet if the
    scenario cannot be simulated.
    """
    simulation = placed_simulation(scenario)
    simulation.num_written = lowered_microbatches(simulation.framework.schedule, scenario.num_microbatches)
    return num_rows(simulation)


def _write_out(simulation: Simulation, *, timed: bool) -> None:
    """Lowers a few microbatches; where the steady ones do not take the same time, twice as many, within bounds."""
    every = simulation.job.scenario.num_microbatches
    for doublings in count(1):
        for rank_class, plan in zip(simulation.classes, simulation.plans, strict=True):
            simulation.programs[rank_class.representative] = program_of(simulation, plan)
        if not timed:
            return
        simulation.timing = _timing(simulation)
        more = num_lowered(simulation, doublings)
        if simulation.timing.steady or simulation.num_written == every or num_rows(replace(simulation,
                                                                                           num_written=more)) > ROWS:
            return
        simulation.num_written = more


def num_lowered(simulation: Simulation, doublings: int = 0) -> int:
    """Number of microbatches to write out: one more where the first differs as later ones add to its gradients."""
    schedule, count = simulation.framework.schedule, simulation.job.scenario.num_microbatches
    few = lowered_microbatches(schedule, count, doublings)
    one_more = schedule.num_stages == 1 and any(adds_in_place(plan, kind) for plan in simulation.plans[:1]
                                                for kind, _ in plan.kind_counts)
    return min(count, few + one_more)


def tried_numbers(simulation: Simulation) -> tuple[int, ...]:
    """Numbers of microbatches, below that of the step, that may be written out until their time is steady, rising.

    Empty where the operations of all microbatches are too many to be written out.
    """
    every = simulation.job.scenario.num_microbatches
    if num_rows(replace(simulation, num_written=every)) > ROWS:
        return ()
    return tuple(takewhile(lambda number: number < every, (num_lowered(simulation, times) for times in count())))


def _timing(simulation: Simulation) -> StepLength:
    """Times the programs. FLOPs of the model are those of equal loads: not every rank does what the fullest does."""
    extra = simulation.job.scenario.num_microbatches - simulation.num_written
    programs = [simulation.programs[c.representative] for c in simulation.classes]
    steady = steady_microbatches(simulation.framework.schedule, simulation.num_written)
    length = time_step(programs, simulation.classes, simulation.routes, simulation.framework, steady, extra)
    equal = top_k_of(simulation.job.graph) << 16
    if simulation.received_per_token() == equal:
        return length
    programs = [_lowered(simulation, plan, replace(simulation.workload(plan), rows_per_token=equal,
                                                   sent_per_token=equal)) for plan in simulation.plans]
    return replace(length, forward_flops=forward_flops(programs, simulation.classes, length.often))


def program_of(simulation: Simulation, plan: Plan) -> Program:
    """Operations of the plan's rank in the microbatches that are simulated one by one, in order of issue."""
    return _lowered(simulation, plan, simulation.workload(plan))


def _lowered(simulation: Simulation, plan: Plan, workload: Workload) -> Program:
    order = actions(simulation.framework.schedule, plan.stage, simulation.num_written)
    return lower(plan, workload, order, hooks_of(simulation.framework))
