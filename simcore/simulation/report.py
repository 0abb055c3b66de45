"""Putting the report together: everything is known, here it gets its published names.

A refusal is a report too: status illegal or error, with the problems in place of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from simcore.errors import IllegalLayout, Problem, RankscopeError
from simcore.frameworks.cited import cited
from simcore.frameworks.registry import at_rest_of, framework_adapter
from simcore.inputs.scenario import Scenario
from simcore.memory.ledger import MemoryPeak, balance, first_step
from simcore.memory.outside_allocator import OutsideMemory, outside, paged
from simcore.memory.series import memory_series
from simcore.pipeline.schedule import steady_microbatches
from simcore.placement.fold import RankClass
from simcore.placement.framework import Framework
from simcore.placement.mesh import IntArray
from simcore.placement.optimizer_step import made_after_backward
from simcore.placement.plan import Plan
from simcore.program.offloaded_layers import most_on_host
from simcore.program.record_layers import record_layers
from simcore.results.lora_coverage import adapted_modules, modules_without_gradient
from simcore.results.report import (
    Adapters,
    AtRest,
    Communicator,
    Owner,
    Peak,
    ProblemRow,
    RankReport,
    Report,
)
from simcore.results.time import StepTime
from simcore.results.verdict import verdict_of
from simcore.simulation.assumptions import of_flushes, of_job, of_memory
from simcore.simulation.device_memory import device_memory
from simcore.simulation.paging import away, of_paging, paged_bytes, with_paging
from simcore.simulation.simulation import Simulation
from simcore.timing.step import with_reasons
from simcore.timing.throughput import step_time
from simcore.timing.traffic import traffic
from simcore.validation.evidence import evidence_of

__all__ = ["grads_persist", "guarded", "report"]


def report(simulation: Simulation, *, series: bool) -> Report:
    """Report of a simulation with everything it has: placement, memory and traffic if lowered, time if timed.

    `series`: True keeps memory over the step.
    """
    scenario = simulation.job.scenario
    made = [_rank(simulation, c, plan, series=series) for c,
            plan in zip(simulation.classes, simulation.plans, strict=True)]
    ranks = tuple(rank for rank, _ in made)
    peaks, limit = [r.peak for r in ranks if r.peak], simulation.limit_bytes()
    verdict = verdict_of((peak.band_bytes for peak in peaks), limit) if peaks else None
    timed = peaks if simulation.timing is not None and verdict != "oom" else []
    return Report(
        name=scenario.name, scenario=scenario.normalised(), status="ok",
        verdict=verdict,
        capacity_bytes=simulation.usable_bytes(),
        headroom_bytes=limit - max(peak.device_bytes for peak in peaks) if peaks else None,
        evidence=evidence_of(simulation.job, simulation.framework),
        assumptions=(*of_job(simulation), *of_memory(simulation, [held for _, held in made]),
                     *of_flushes(timed, simulation.usable_bytes()),
                     *max((of_paging(paged_bytes(plan), away(plan, rank.peak.outside) if rank.peak else 0)
                           for plan, rank in zip(simulation.plans, ranks, strict=True)), key=len, default=())),
        communicators=tuple(Communicator(axis=axis, size=simulation.job.mesh.axis(axis).size)
                            for axis in simulation.framework.communicators),
        adapters=_adapters(simulation), ranks=ranks, time=_time(simulation, ranks))


def _adapters(simulation: Simulation) -> Adapters | None:
    if simulation.job.scenario.training.method == "full":
        return None
    stages = {plan.stage: plan for plan in simulation.plans}.values()
    recorded = ((plan, record_layers(plan, simulation.workload(plan),
                                     several=simulation.num_written > 1)) for plan in stages)
    return Adapters(adapted=adapted_modules(simulation.job.graph), unmatched_targets=simulation.job.unmatched_targets,
                    without_gradient=modules_without_gradient(recorded) if simulation.programs else {})


def _time(simulation: Simulation, ranks: Sequence[RankReport]) -> StepTime | None:
    timing = simulation.timing
    if timing is None:
        return None
    last = ranks[timing.worst]
    reasons = with_reasons(timing, simulation.programs[simulation.classes[timing.worst].representative])
    told = with_paging(simulation, reasons, away(simulation.plans[timing.worst], last.peak.outside) if last.peak else 0)
    return step_time(simulation.job, simulation.framework, simulation.routes, told, last.ranks, last.traffic)


def _rank(simulation: Simulation, rank_class: RankClass, plan: Plan, *, series: bool) -> tuple[
        RankReport, tuple[OutsideMemory, ...]]:
    """The class's report, and what its ranks hold outside the allocator."""
    mesh = simulation.job.mesh
    axes = [mesh.axis(a) for a in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "expert_dp")]
    program = simulation.programs.get(rank_class.representative)
    balanced = None if program is None else balance(program)
    at_rest = at_rest_of(simulation.framework)
    rest = (at_rest.exact if simulation.is_exact else at_rest.mean)(plan)
    of_params, of_grads = at_rest.padding(plan, rest, exact=simulation.is_exact)
    sent = () if program is None else traffic(program, simulation.routes, rank_class.members(mesh), _steady(simulation),
                                              _repeats(simulation))
    held = () if program is None else (*outside(simulation.comm_setup(), sent), *simulation.uncounted_workspaces(plan))
    waiting = 0 if program is None else most_on_host(program, rounded=False)
    peak = None if balanced is None else _peak(simulation, balanced, plan, held, waiting)
    pages = paged(peak.outside.get("paged_states", 0)) if peak else ()
    return RankReport(
        ranks=rank_class.rank_text(mesh), num_ranks=rank_class.num_ranks,
        coordinates={a.name: rank_class.coordinates(mesh, a) for a in axes if a.size > 1}, stage=rank_class.stage,
        at_rest={name: AtRest(params_bytes=r.params_bytes, grads_bytes=r.grads_bytes,
                              optimizer_bytes=r.optimizer_bytes, num_params=r.num_params,
                              num_trainable_params=r.num_trainable_params) for name, r in rest.items()},
        apportioned=bool(simulation.framework.dealt) or (simulation.framework.strategy.is_flat
                                                         and not simulation.is_exact),
        padding_bytes=of_params, grads_padding_bytes=of_grads,
        grads_persist=grads_persist(simulation.framework),
        peak=peak,
        end_bytes=None if balanced is None else balanced.end_bytes,
        traffic=sent,
        memory=memory_series(program,
                             _row_ns(simulation, rank_class)) if series and program is not None else None), (
                                 *held, *pages)


def _row_ns(simulation: Simulation, rank_class: RankClass) -> IntArray | None:
    if simulation.timing is None:
        return None
    return simulation.timing.row_ns[simulation.classes.index(rank_class)]


def grads_persist(framework: Framework) -> bool:
    """True if some gradients stay on the device from step to step."""
    return any(rule.policy.grads_persist for rule in framework.rules)


def _steady(simulation: Simulation) -> range:
    """Microbatches that stand for all that are not written out."""
    return steady_microbatches(simulation.framework.schedule, simulation.num_written)


def _repeats(simulation: Simulation) -> int:
    """Number of times that the steady microbatches run in a step."""
    unwritten = simulation.job.scenario.num_microbatches - simulation.num_written
    return unwritten // simulation.framework.schedule.period + 1


def _microbatch(simulation: Simulation, written: int) -> int:
    """Its number in the step; those after the steady one were written out with smaller numbers."""
    is_later = written >= _steady(simulation).stop
    return written + is_later * (simulation.job.scenario.num_microbatches - simulation.num_written)


def _peak(simulation: Simulation, peak: MemoryPeak, plan: Plan, held: Sequence[OutsideMemory], waiting: int) -> Peak:
    """The peak; `waiting`: bytes of saved tensors on the host."""
    memory = device_memory(simulation, plan, peak.peak_bytes, held)
    buffers = framework_adapter(simulation.framework.name).host_buffers(plan, rounded=False)
    evicted = paged_bytes(plan) - memory.outside.get("paged_states", 0)
    return Peak(
        allocated_bytes=peak.peak_bytes, reserved_bytes=memory.seen.middle, device_bytes=memory.device,
        host_bytes=plan.host_bytes(simulation.comm_setup().tokens) + buffers.total() + evicted + waiting,
        phase=peak.phase,
        first_step_bytes=first_step(peak, made_after_backward(plan)), event=peak.event, layer=peak.layer,
        microbatch=_microbatch(simulation, peak.microbatch),
        by_category=peak.by_category, by_phase=peak.by_phase,
        top=tuple(Owner(owner=o, category=c, bytes=b) for o, c, b in peak.top),
        reserved_band_bytes=memory.seen.band, outside=memory.outside, band_bytes=memory.band)


# ---- refusals --------------------------------------------------------------------------------------------------------
def guarded(scenario: Scenario, answer: Callable[[], Report]) -> Report:
    """Report that `answer` makes, or, if that raises a RankscopeError, a report of its problems.

    The latter has status illegal (IllegalLayout) or error.
    """
    try:
        return answer()
    except RankscopeError as error:
        located = type(error)(replace(_located(problem, scenario), rule=cited(
            problem.rule, scenario.framework_version)) for problem in error.problems)
        return _failed(scenario, located, "illegal" if isinstance(error, IllegalLayout) else "error")


def _located(problem: Problem, scenario: Scenario) -> Problem:
    """Adds `file:line` where a problem names a key alone: layers of models and machines know no file."""
    key = problem.where.split(".")
    return replace(problem, where=scenario.where(*key)) if key[0] in type(scenario).model_fields else problem


def _failed(scenario: Scenario, error: RankscopeError, status: Literal["illegal", "error"]) -> Report:
    """The report of a scenario that was refused."""
    problems = tuple(ProblemRow(where=p.where, message=p.message, rule=p.rule) for p in error.problems)
    return Report(name=scenario.name, scenario=scenario.normalised(), status=status, problems=problems)
