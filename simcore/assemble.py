"""Putting the report together: everything is known, here it gets its published names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from simcore.adapters import adapted_modules, modules_without_gradient
from simcore.clocked import Clocked
from simcore.errors import RankscopeError
from simcore.flows.flat import exact_at_rest, padding_elements
from simcore.fold import RankClass
from simcore.framework import Buckets, Framework
from simcore.job import Job
from simcore.ledger import Balance, balance, first_step
from simcore.mesh import IntArray
from simcore.plan import Plan
from simcore.program import Program
from simcore.report import (
    Adapters,
    Assumption,
    AtRest,
    Communicator,
    Owner,
    Peak,
    ProblemRow,
    RankReport,
    Report,
    StepTime,
)
from simcore.routing import received_per_token, sent_per_token, top_k_of
from simcore.scenario import Scenario
from simcore.schedule import steady_microbatch
from simcore.series import memory_series
from simcore.tiles import Workload, record_layers
from simcore.topology import Topology
from simcore.traffic import traffic
from simcore.units import dtype_bytes, parse_quantity

__all__ = ["Parts", "failed", "report"]


@dataclass(eq=False)
class Parts:
    """Everything that one simulation made, before it is put into a report."""

    job: Job
    framework: Framework
    topology: Topology
    classes: tuple[RankClass, ...]
    plans: tuple[Plan, ...]
    lowered: int
    exact: bool = False
    programs: dict[int, Program] = field(default_factory=dict)
    clocked: Clocked | None = None

    def workload(self) -> Workload:
        """Of one microbatch on one rank."""
        training, mesh, top_k = self.job.scenario.training, self.job.mesh, top_k_of(self.job.graph)
        return Workload(training.micro_batch_size, training.seq_len // mesh.cp,
                        received_per_token(training.routing, top_k, mesh.ep), sent_per_token(training.routing, top_k))

    def usable_bytes(self) -> int:
        """What a rank may fill: the scenario's limit, or what the driver leaves."""
        usable = self.job.scenario.limits.usable_memory
        return self.topology.device.usable_bytes if usable == "auto" else int(parse_quantity(usable, "B"))


def failed(scenario: Scenario, error: RankscopeError, status: Literal["illegal", "error"]) -> Report:
    """The report of a scenario that was refused."""
    problems = tuple(ProblemRow(where=p.where, message=p.message, rule=p.rule) for p in error.problems)
    return Report(name=scenario.name, scenario=scenario.normalised(), status=status, problems=problems)


def report(parts: Parts, *, series: bool) -> Report:
    """The answer, from whatever was simulated."""
    scenario = parts.job.scenario
    ranks = tuple(_rank(parts, c, plan, series=series) for c, plan in zip(parts.classes, parts.plans, strict=True))
    worst = max((r.peak.device_bytes for r in ranks if r.peak), default=None)
    capacity = parts.usable_bytes()
    limit = int(capacity * scenario.limits.max_fill)
    return Report(
        name=scenario.name, scenario=scenario.normalised(), status="ok",
        verdict=None if worst is None else "fits" if worst <= limit else "oom",
        capacity_bytes=capacity, headroom_bytes=None if worst is None else limit - worst,
        assumptions=_assumptions(parts),
        communicators=tuple(Communicator(axis=axis, size=parts.job.mesh.axis(axis).size)
                            for axis in parts.framework.communicators),
        adapters=_adapters(parts), ranks=ranks, time=_time(parts))


def _adapters(parts: Parts) -> Adapters | None:
    if parts.job.scenario.training.method == "full":
        return None
    stages = {plan.stage: plan for plan in parts.plans}.values()
    recorded = ((plan, record_layers(plan, parts.workload())) for plan in stages)
    return Adapters(adapted=adapted_modules(parts.job.graph), unmatched_targets=parts.job.unmatched_targets,
                    without_gradient=modules_without_gradient(recorded) if parts.programs else {})


def _time(parts: Parts) -> StepTime | None:
    """Rates of the step. Model FLOPs: three times those of forward GEMMs, attention and scan, recompute not counted.

    Twice where the base is frozen: its weights get no gradient.
    """
    clocked = parts.clocked
    if clocked is None:
        return None
    training, mesh = parts.job.scenario.training, parts.job.mesh
    seconds = clocked.step_ns / 1e9
    sequences = parts.job.scenario.num_microbatches * training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard
    passes = 3 if training.method == "full" else 2
    flops = passes * clocked.forward_flops / seconds / mesh.size
    peak = getattr(parts.topology.device.peak, parts.framework.compute_dtype)
    return StepTime(
        step_s=seconds, forward_s=clocked.phase_ns["forward"] / 1e9, backward_s=clocked.phase_ns["backward"] / 1e9,
        optimizer_s=clocked.phase_ns["optimizer"] / 1e9, exposed_communication_s=clocked.exposed_ns / 1e9,
        tokens_per_s_per_gpu=sequences * training.seq_len / seconds / mesh.size, model_tflops_per_gpu=flops / 1e12,
        mfu=flops / peak.si if peak else 0.0)


def _rank(parts: Parts, rank_class: RankClass, plan: Plan, *, series: bool) -> RankReport:
    mesh = parts.job.mesh
    axes = [mesh.axis(a) for a in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "expert_dp")]
    program = parts.programs.get(rank_class.representative)
    balanced = None if program is None else balance(program)
    flow = plan.framework.flow
    flat = isinstance(flow, Buckets)
    exact = flat and parts.exact
    rest = exact_at_rest(plan) if exact else plan.at_rest()
    padding = padding_elements(plan) if flat else 0
    return RankReport(
        ranks=rank_class.rank_text(mesh), num_ranks=rank_class.num_ranks,
        coordinates={a.name: rank_class.coordinates(mesh, a) for a in axes if a.size > 1}, stage=rank_class.stage,
        at_rest={name: AtRest(params_bytes=r.params_bytes, grads_bytes=r.grads_bytes,
                              optimizer_bytes=r.optimizer_bytes, num_params=r.num_params,
                              num_trainable_params=r.num_trainable_params) for name, r in rest.items()},
        apportioned=isinstance(flow, Buckets) and flow.scatter and not exact,
        padding_bytes=plan.padding_bytes() + padding * _stored_bytes(plan),
        grads_padding_bytes=plan.padding_bytes() + padding * _grad_bytes(plan),
        grads_persist=_grads_persist(parts.framework),
        peak=None if balanced is None else _peak(parts, balanced, plan.born_in_step()),
        end_bytes=None if balanced is None else balanced.end_bytes,
        traffic=() if program is None else traffic(program, mesh, steady_microbatch(parts.lowered), _repeats(parts)),
        memory=memory_series(program, _row_ns(parts, rank_class)) if series and program is not None else None)


def _row_ns(parts: Parts, rank_class: RankClass) -> IntArray | None:
    if parts.clocked is None:
        return None
    return parts.clocked.row_ns[parts.classes.index(rank_class)]


def _stored_bytes(plan: Plan) -> int:
    return dtype_bytes(next(p.life.rest.dtype for layer in plan.layers for p in plan.of_layer(layer)))


def _grad_bytes(plan: Plan) -> int:
    """Of one element of a flat gradient buffer."""
    flow = plan.framework.flow
    return dtype_bytes(flow.grad_dtype) if isinstance(flow, Buckets) else 0


def _grads_persist(framework: Framework) -> bool:
    return any(rule.life.grads_persist for rule in framework.rules)


def _repeats(parts: Parts) -> int:
    """How often the steady microbatch happens."""
    return _count(parts) - parts.lowered + 1


def _count(parts: Parts) -> int:
    return parts.job.scenario.num_microbatches


def _microbatch(parts: Parts, written: int) -> int:
    """Its number in the step; those after the steady one were written out with smaller numbers."""
    is_later = written > steady_microbatch(parts.lowered)
    return written + is_later * (_count(parts) - parts.lowered)


def _peak(parts: Parts, peak: Balance, born_in_step: int) -> Peak:
    device = peak.peak_bytes + parts.topology.device.context_bytes
    return Peak(
        allocated_bytes=peak.peak_bytes, reserved_bytes=peak.peak_bytes, device_bytes=device, phase=peak.phase,
        first_step_bytes=first_step(peak, born_in_step), event=peak.event, layer=peak.layer,
        microbatch=_microbatch(parts, peak.microbatch),
        by_category=peak.by_category, by_phase=peak.by_phase,
        top=tuple(Owner(owner=o, category=c, bytes=b) for o, c, b in peak.top),
        band_bytes=(device, device))


def _assumptions(parts: Parts) -> tuple[Assumption, ...]:
    autos = [Assumption(what=key, value=value, kind="default", source=source)
             for key, (value, source) in parts.job.autos.items()]
    noted = [Assumption.model_validate({"what": w, "value": v, "kind": k, "source": s})
             for w, v, k, s in parts.framework.assumptions]
    return (*autos, *noted, *_ENGINE_ASSUMPTIONS)


_ENGINE_ASSUMPTIONS = (
    Assumption(what="reserved_bytes", value="allocated_bytes", kind="assumed",
               source="allocator rounding and fragmentation are not modelled in this version"),
    Assumption(what="device_bytes", value="reserved_bytes + CUDA context", kind="assumed",
               source="NCCL buffers and library workspaces are not modelled in this version; the band does not "
                      "include them"),
)
