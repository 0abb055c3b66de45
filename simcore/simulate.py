"""The way of the data: scenario -> job -> plan -> classes -> programs -> ledger and timeline -> report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from simcore.errors import IllegalLayout, InputError, NotYet, Problem, RankscopeError
from simcore.frameworks.registry import at_rest_of, hooks_of
from simcore.frameworks.setup import prepare
from simcore.hardware.device import Device
from simcore.hardware.topology import Topology
from simcore.inputs.bounds import ROWS
from simcore.inputs.scenario import Scenario
from simcore.pipeline.schedule import actions, lowered_microbatches, steady_microbatches
from simcore.placement.fold import RankClass, joined, unfolded, unfolded_one
from simcore.placement.fold import fold as fold_ranks
from simcore.placement.framework import Framework
from simcore.placement.job import Job, topology_of
from simcore.placement.plan import Plan
from simcore.placement.plan import place as place_rank
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import adds_in_place
from simcore.program.row_cache import taken
from simcore.results.report import Report
from simcore.simulation.assemble import Simulation, failed, report
from simcore.simulation.detail import with_detail
from simcore.simulation.hosts import hosted
from simcore.simulation.random_lengths import is_drawn, with_lengths
from simcore.simulation.random_routing import drawn
from simcore.simulation.step_length import check_rows, num_rows, unlike
from simcore.timing.routes import Routes
from simcore.timing.step import StepTiming, time_step
from simcore.units import parse_quantity

if TYPE_CHECKING:
    from simcore.rl.workload import Trainer

__all__ = ["check", "place", "rows_of", "simulate"]

EXACT_RANKS = 64
"""Up to this many ranks `place` works out flat shards for every rank, and so does a step that differs by them."""


def simulate(scenario: Scenario, *, series: bool = False, detail: bool = False, fold: bool = True,
             rank: int | None = None, timed: bool = True, spans: int | None = None, whole: bool = False,
             postings: int = 0) -> Report:
    """Simulate one training step of one scenario. Refusals come back as a report (status illegal or error).

    `series`: memory over the step too. `detail`: that, and all else that pictures show. `fold` False simulates every
    rank by itself. `rank`: that rank alone, exactly, without time. `timed` False: memory and traffic only. `spans`:
    of the detail so many are kept, instead of as many as a page can bear. `whole`: every microbatch is written out.
    `postings`: with the detail, lifetimes of allocations too, at most so many births and deaths.
    """
    if scenario.workload != "train":
        return _guarded(partial(_other, scenario, rank, series=series or detail), scenario)
    work = partial(_simulate, series=series or detail, detail=detail, folded=fold, rank=rank, spans=spans,
                   whole=whole, postings=postings)
    return _guarded(partial(_at_its_lengths, scenario, work, timed=timed), scenario)


def rows_of(scenario: Scenario) -> int:
    """How long the programs of its training step are, as they are written out at first; raises what refuses it."""
    parts = _parts(scenario, folded=True, rank=None)
    parts.lowered = lowered_microbatches(parts.framework.schedule, scenario.num_microbatches)
    return num_rows(parts)


def place(scenario: Scenario, *, rank: int | None = None) -> Report:
    """What lies on every rank; no peak and no time."""
    if scenario.workload == "serve":
        return _guarded(partial(_served, scenario), scenario)
    return _guarded(partial(_place, scenario, rank=rank), scenario)


def check(scenario: Scenario) -> Report:
    """Legality only: parse, and ask the framework's table."""
    if scenario.workload == "serve":
        return _guarded(partial(_served, scenario, ranks=False), scenario)
    return _guarded(partial(_check, scenario), scenario)


# what is not a training step alone is imported where it is asked for: most runs have none of it
def _other(scenario: Scenario, rank: int | None, *, series: bool) -> Report:
    """What is not a training step alone."""
    if rank is not None:
        raise NotYet(Problem("--rank", f"not yet: one rank of the workload {scenario.workload}"))
    if scenario.workload == "serve":
        return _served(scenario)
    from simcore.rl.workload import in_phases

    return in_phases(scenario, _trainer(series=series))


def _served(scenario: Scenario, *, ranks: bool = True) -> Report:
    from simcore.vllm.workload import serve

    return serve(scenario, ranks=ranks)


def _guarded(work: partial[Report], scenario: Scenario) -> Report:
    try:
        return work()
    except RankscopeError as error:
        told = type(error)(_in_file(problem, scenario) for problem in error.problems)
        return failed(scenario, told, "illegal" if isinstance(error, IllegalLayout) else "error")


def _in_file(problem: Problem, scenario: Scenario) -> Problem:
    """With `file:line` where a key alone was told: layers of models and machines know no file."""
    key = problem.where.split(".")
    return replace(problem, where=scenario.where(*key)) if key[0] in type(scenario).model_fields else problem


def _at_its_lengths(scenario: Scenario, work: partial[Report], *, timed: bool) -> Report:
    if not is_drawn(scenario):
        return work(scenario, timed=timed)
    padding = prepare(scenario)[1].padding
    return with_lengths(scenario, padding, partial(work, timed=False), partial(work, timed=timed))


def _simulate(scenario: Scenario, *, series: bool, detail: bool, folded: bool, rank: int | None, timed: bool,
              spans: int | None = None, whole: bool = False, postings: int = 0) -> Report:
    parts = _parts(scenario, folded=folded, rank=rank)
    parts.lowered = scenario.num_microbatches if whole else _few(parts)
    check_rows(parts)
    try:
        _write_out(parts, timed=timed and rank is None)
        found = hosted(parts, drawn(parts, report(parts, series=series)))
        return unlike(parts, with_detail(parts, found, spans, postings) if detail else found)
    finally:
        taken(num_rows(parts))


def _write_out(parts: Simulation, *, timed: bool) -> None:
    """A few microbatches; where the steady ones do not take the same time, twice as many, within bounds."""
    every = parts.job.scenario.num_microbatches
    for doublings in count(1):
        for rank_class, plan in zip(parts.classes, parts.plans, strict=True):
            parts.programs[rank_class.representative] = _program(parts, plan)
        if not timed:
            return
        parts.clocked = _clock(parts)
        more = _few(parts, doublings)
        if parts.clocked.steady or parts.lowered == every or num_rows(replace(parts, lowered=more)) > ROWS:
            return
        parts.lowered = more


def _few(parts: Simulation, doublings: int = 0) -> int:
    """Microbatches to write out: one more where the first differs because later ones add to its gradients."""
    schedule, count = parts.framework.schedule, parts.job.scenario.num_microbatches
    few = lowered_microbatches(schedule, count, doublings)
    one_more = schedule.num_stages == 1 and any(adds_in_place(plan, kind) for plan in parts.plans[:1]
                                                for kind, _ in plan.kind_counts)
    return min(count, few + one_more)


def _clock(parts: Simulation) -> StepTiming:
    extra = parts.job.scenario.num_microbatches - parts.lowered
    programs = [parts.programs[c.representative] for c in parts.classes]
    steady = steady_microbatches(parts.framework.schedule, parts.lowered)
    return time_step(programs, parts.classes, parts.routes, parts.framework, steady, extra)


def _place(scenario: Scenario, *, rank: int | None) -> Report:
    parts = _parts(scenario, folded=True, rank=rank)
    if rank is None and parts.framework.strategy.is_placed_by_rank and scenario.world_size <= EXACT_RANKS:
        parts = _exact_parts(parts)
    return report(parts, series=False)


def _exact_parts(parts: Simulation) -> Simulation:
    """Ranks that hold the same inside their flat shards, and the same padding, are one class."""
    mesh, graph, framework = parts.job.mesh, parts.job.graph, parts.framework
    alike: dict[object, list[RankClass]] = {}
    at_rest = at_rest_of(framework)
    for single in unfolded(mesh):
        plan = place_rank(graph, mesh, framework, single.representative)
        rest = at_rest.exact(plan)
        held = tuple(sorted(rest.items(), key=lambda item: item[0])), at_rest.padding(plan, rest, exact=True)
        alike.setdefault((single.stage, held), []).append(single)
    classes = tuple(joined(group) for group in alike.values())
    plans = tuple(place_rank(graph, mesh, framework, c.representative) for c in classes)
    return replace(parts, classes=classes, plans=plans, exact=True)


def _check(scenario: Scenario) -> Report:
    if scenario.workload != "train":
        from simcore.rl.workload import legal

        legal(scenario, _trainer(series=False))
    topology = _topology(scenario)
    job, framework = prepare(scenario)
    return report(Simulation(job, framework, topology, Routes(job, framework, topology), (), (), 1), series=False)


def _parts(scenario: Scenario, *, folded: bool, rank: int | None) -> Simulation:
    topology = _topology(scenario)
    job, framework = prepare(scenario)
    classes = _classes(job, framework, folded=folded, rank=rank)
    plans = tuple(place_rank(job.graph, job.mesh, framework, c.representative) for c in classes)
    return Simulation(job, framework, topology, Routes(job, framework, topology), classes, plans, 1,
                 exact=rank is not None)


def _classes(job: Job, framework: Framework, *, folded: bool, rank: int | None) -> tuple[RankClass, ...]:
    if rank is not None:
        if not 0 <= rank < job.mesh.size:
            raise InputError(Problem("--rank", f"expected a rank from 0 to {job.mesh.size - 1}, got {rank}"))
        every = unfolded_one(job.mesh, rank)
        return (every,)
    alone = framework.strategy.step_varies_by_rank and job.mesh.size <= EXACT_RANKS
    return fold_ranks(job.graph, job.mesh, framework) if folded and not alone else unfolded(job.mesh)


def _topology(scenario: Scenario) -> Topology:
    topology = topology_of(scenario)
    topology.check_world_size(scenario.world_size, scenario.where("mesh"))
    _check_format(scenario, topology.device)
    usable, total = scenario.limits.usable_memory, topology.device.memory.total.si
    if usable != "auto" and parse_quantity(usable, "B") > total:
        told = f"expected at most the {total:,.0f} B of {topology.device.name}, got {usable}"
        raise InputError(Problem(scenario.where("limits", "usable_memory"), told))
    return topology


def _check_format(scenario: Scenario, device: Device) -> None:
    """Before the framework is asked: what no kernel of the GPU computes in is no layout of any framework."""
    given = scenario.training.precision.compute
    asked = "bf16" if given == "auto" else given
    if asked not in device.formats:
        told = f"compute: {device.name} does not compute in {asked}; it has {', '.join(device.formats)}"
        raise InputError(Problem(scenario.where("training", "precision", "compute"), told))


def _program(parts: Simulation, plan: Plan) -> Program:
    order = actions(parts.framework.schedule, plan.stage, parts.lowered)
    return lower(plan, parts.workload(plan), order, hooks_of(parts.framework))


def _trainer(*, series: bool) -> Trainer:
    """Training steps for workloads of several phases."""
    from simcore.rl.workload import Trainer

    step = partial(_simulate, series=series, detail=False, folded=True, rank=None, timed=True)
    return Trainer(step, partial(_parts, folded=True, rank=None))
