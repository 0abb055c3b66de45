"""Putting the report together: everything is known, here it gets its published names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from simcore.errors import RankscopeError
from simcore.frameworks.registry import at_rest_of, framework_adapter
from simcore.hardware.topology import Topology
from simcore.inputs.scenario import Scenario
from simcore.memory.band import Band, band_of, layout_class
from simcore.memory.ledger import MemoryPeak, balance, first_step
from simcore.memory.outside_allocator import CommSetup, OutsideMemory, outside, paged
from simcore.memory.reserved import EXPANDABLE, GATHERED, ORDINARY, Reserved, ReservedModel, needed, reserved
from simcore.memory.series import memory_series
from simcore.memory.workspace import Workspace, WorkspaceInputs, spaces
from simcore.pipeline.schedule import steady_microbatches
from simcore.placement.fold import RankClass
from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.placement.mesh import IntArray
from simcore.placement.on_host import host_bytes
from simcore.placement.optimizer_step import made_after_backward
from simcore.placement.packing import assumptions as packing_assumptions
from simcore.placement.packing import pack_sequences
from simcore.placement.plan import Plan
from simcore.placement.routing import expert_hidden, received_per_token, sent_per_token, top_k_of
from simcore.program.program import Program
from simcore.program.record_layers import Workload, record_layers
from simcore.results.lora_coverage import adapted_modules, modules_without_gradient
from simcore.results.report import (
    Adapters,
    Assumption,
    AtRest,
    Communicator,
    Owner,
    Peak,
    ProblemRow,
    RankReport,
    Report,
)
from simcore.results.time import StepTime
from simcore.timing.routes import Routes
from simcore.timing.step import StepTiming
from simcore.timing.throughput import step_time
from simcore.timing.traffic import traffic
from simcore.units import format_bytes, parse_cublas, parse_quantity

__all__ = ["Simulation", "failed", "report"]


@dataclass(eq=False)
class Simulation:
    """Everything that one simulation made, before it is put into a report."""

    job: Job
    framework: Framework
    topology: Topology
    routes: Routes
    classes: tuple[RankClass, ...]
    plans: tuple[Plan, ...]
    lowered: int
    exact: bool = False
    programs: dict[int, Program] = field(default_factory=dict)
    workspaces: dict[int, tuple[Workspace, ...]] = field(default_factory=dict)
    clocked: StepTiming | None = None

    def workload(self, plan: Plan) -> Workload:
        """Of one microbatch on the plan's rank."""
        training, top_k, setting = self.job.scenario.training, top_k_of(self.job.graph), self.setting()
        if plan.rank not in self.workspaces:
            self.workspaces[plan.rank] = spaces(plan, setting)
        kept = () if self.beside(plan) else tuple((s.name, s.num_bytes) for s in self.workspaces[plan.rank])
        packed = pack_sequences(training)
        return Workload(setting.batch, setting.seq, received_per_token(training.routing, top_k, self.job.mesh.ep),
                        sent_per_token(training.routing, top_k), kept, (packed.sequences, packed.attended))

    def beside(self, plan: Plan) -> tuple[OutsideMemory, ...]:
        """Workspaces that are counted beside tensors: under FSDP2's hooks, allocated is what traces count.

        The traces that those frameworks are held against have tensors alone. Megatron's readings include workspaces.
        """
        if self.framework.strategy.counts_workspaces:
            return ()
        num_bytes = sum(space.num_bytes for space in self.workspaces[plan.rank])
        source = "; ".join(dict.fromkeys(space.source for space in self.workspaces[plan.rank]))
        return (OutsideMemory("workspace", num_bytes, "derived", f"{source}; beside what is allocated"),)

    def site(self) -> CommSetup:
        """What buffers outside the allocator depend on."""
        setting = self.setting()
        return CommSetup(self.job.mesh, self.topology, self.framework.libraries, setting.batch * setting.seq,
                    self.job.graph.architecture.hidden, expert_hidden(self.job.graph))

    def setting(self) -> WorkspaceInputs:
        """What workspaces depend on."""
        scenario = self.job.scenario
        given, packed = scenario.environment.cublas_workspace_config, pack_sequences(scenario.training)
        return WorkspaceInputs(self.topology.device.architecture, None if given == "auto" else parse_cublas(given),
                       packed.batch, packed.seq // self.job.mesh.cp)

    def shares(self) -> ReservedModel:
        """How much the allocator is seen to keep: more where FSDP's hooks gather on streams of their own."""
        gathers = any(self.job.mesh.axis(unit.shard_axis).size > 1 for unit in self.framework.units)
        return GATHERED if gathers and self.framework.strategy.gathers_on_side_streams else self.usual_shares()

    def usual_shares(self) -> ReservedModel:
        """How much of that no cache is: blocks that do not fit together."""
        return EXPANDABLE if self.job.scenario.environment.expandable_segments else ORDINARY

    def needed(self, allocated: int) -> Reserved:
        """What must be there for a peak of `allocated` bytes."""
        return needed(allocated, self.shares(), self.usual_shares())

    def usable_bytes(self) -> int:
        """What a rank may fill: the scenario's limit, or what the driver leaves."""
        usable = self.job.scenario.limits.usable_memory
        return self.topology.device.usable_bytes if usable == "auto" else int(parse_quantity(usable, "B"))


def failed(scenario: Scenario, error: RankscopeError, status: Literal["illegal", "error"]) -> Report:
    """The report of a scenario that was refused."""
    problems = tuple(ProblemRow(where=p.where, message=p.message, rule=p.rule) for p in error.problems)
    return Report(name=scenario.name, scenario=scenario.normalised(), status=status, problems=problems)


def report(parts: Simulation, *, series: bool) -> Report:
    """The answer, from whatever was simulated."""
    scenario = parts.job.scenario
    band = band_of(layout_class(parts.job, parts.framework))
    made = [_rank(parts, c, plan, band, series=series) for c, plan in zip(parts.classes, parts.plans, strict=True)]
    ranks = tuple(rank for rank, _ in made)
    worst = max((r.peak.device_bytes for r in ranks if r.peak), default=None)
    capacity = parts.usable_bytes()
    limit = int(capacity * scenario.limits.max_fill)
    return Report(
        name=scenario.name, scenario=scenario.normalised(), status="ok",
        verdict=None if worst is None else "fits" if worst <= limit else "oom",
        capacity_bytes=capacity, headroom_bytes=None if worst is None else limit - worst,
        assumptions=(*_assumptions(parts), *_of_memory(parts, band, [held for _, held in made])),
        communicators=tuple(Communicator(axis=axis, size=parts.job.mesh.axis(axis).size)
                            for axis in parts.framework.communicators),
        adapters=_adapters(parts), ranks=ranks, time=_time(parts, ranks))


def _adapters(parts: Simulation) -> Adapters | None:
    if parts.job.scenario.training.method == "full":
        return None
    stages = {plan.stage: plan for plan in parts.plans}.values()
    recorded = ((plan, record_layers(plan, parts.workload(plan), several=parts.lowered > 1)) for plan in stages)
    return Adapters(adapted=adapted_modules(parts.job.graph), unmatched_targets=parts.job.unmatched_targets,
                    without_gradient=modules_without_gradient(recorded) if parts.programs else {})


def _time(parts: Simulation, ranks: Sequence[RankReport]) -> StepTime | None:
    clocked = parts.clocked
    if clocked is None:
        return None
    last = ranks[clocked.worst]
    return step_time(parts.job, parts.framework, parts.routes, clocked, last.ranks, last.traffic)


def _rank(parts: Simulation, rank_class: RankClass, plan: Plan, band: Band, *, series: bool) -> tuple[
        RankReport, tuple[OutsideMemory, ...]]:
    """The class's report, and what its ranks hold outside the allocator."""
    mesh = parts.job.mesh
    axes = [mesh.axis(a) for a in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "expert_dp")]
    program = parts.programs.get(rank_class.representative)
    balanced = None if program is None else balance(program)
    at_rest = at_rest_of(parts.framework)
    rest = (at_rest.exact if parts.exact else at_rest.mean)(plan)
    of_params, of_grads = at_rest.padding(plan, rest, exact=parts.exact)
    sent = () if program is None else traffic(program, parts.routes, rank_class.members(mesh), _steady(parts),
                                              _repeats(parts))
    held = () if program is None else (*outside(parts.site(), sent), *parts.beside(plan),
                                             *paged(plan.elsewhere().get("managed", 0)))
    return RankReport(
        ranks=rank_class.rank_text(mesh), num_ranks=rank_class.num_ranks,
        coordinates={a.name: rank_class.coordinates(mesh, a) for a in axes if a.size > 1}, stage=rank_class.stage,
        at_rest={name: AtRest(params_bytes=r.params_bytes, grads_bytes=r.grads_bytes,
                              optimizer_bytes=r.optimizer_bytes, num_params=r.num_params,
                              num_trainable_params=r.num_trainable_params) for name, r in rest.items()},
        apportioned=(parts.framework.strategy.is_flat and not parts.exact) or bool(parts.framework.dealt),
        padding_bytes=of_params, grads_padding_bytes=of_grads,
        grads_persist=_grads_persist(parts.framework),
        peak=None if balanced is None else _peak(parts, balanced, plan, held, band),
        end_bytes=None if balanced is None else balanced.end_bytes,
        traffic=sent,
        memory=memory_series(program, _row_ns(parts, rank_class)) if series and program is not None else None), held


def _row_ns(parts: Simulation, rank_class: RankClass) -> IntArray | None:
    if parts.clocked is None:
        return None
    return parts.clocked.row_ns[parts.classes.index(rank_class)]


def _grads_persist(framework: Framework) -> bool:
    return any(rule.policy.grads_persist for rule in framework.rules)


def _steady(parts: Simulation) -> range:
    """Microbatches that stand for all that are not written out."""
    return steady_microbatches(parts.framework.schedule, parts.lowered)


def _repeats(parts: Simulation) -> int:
    """How often the steady microbatches happen."""
    return (parts.job.scenario.num_microbatches - parts.lowered) // parts.framework.schedule.group + 1


def _microbatch(parts: Simulation, written: int) -> int:
    """Its number in the step; those after the steady one were written out with smaller numbers."""
    is_later = written >= _steady(parts).stop
    return written + is_later * (parts.job.scenario.num_microbatches - parts.lowered)


def _peak(parts: Simulation, peak: MemoryPeak, plan: Plan, held: Sequence[OutsideMemory], band: Band) -> Peak:
    allocated, beside = peak.peak_bytes, sum(one.num_bytes for one in held)
    seen = reserved(allocated, parts.shares(), parts.usable_bytes() - beside)
    mine, low, high = (parts.needed(int(allocated * off)) for off in (1, band.low, band.high))
    return Peak(
        allocated_bytes=allocated, reserved_bytes=seen.middle, device_bytes=mine.middle + beside,
        host_bytes=host_bytes(plan, parts.site().tokens) + framework_adapter(parts.framework.name).host_buffers(plan,
                                                                                                                rounded=False).total(),
        phase=peak.phase,
        first_step_bytes=first_step(peak, made_after_backward(plan)), event=peak.event, layer=peak.layer,
        microbatch=_microbatch(parts, peak.microbatch),
        by_category=peak.by_category, by_phase=peak.by_phase,
        top=tuple(Owner(owner=o, category=c, bytes=b) for o, c, b in peak.top),
        reserved_band_bytes=(seen.low, seen.high), outside={one.category: one.num_bytes for one in held},
        band_bytes=(low.low + beside, high.high + beside))


def _assumptions(parts: Simulation) -> tuple[Assumption, ...]:
    autos = [Assumption(what=key, value=value, kind="default", source=source)
             for key, (value, source) in parts.job.autos.items()]
    if reason := parts.job.graph.architecture.assumed:
        autos.append(Assumption(what="model", value="a shape that nobody published", kind="assumed", source=reason))
    autos += [Assumption(what=what, value=value, kind="assumed", source=source)
              for what, value, source in parts.job.graph.architecture.ignored]
    of_lengths = packing_assumptions(parts.job.scenario.training)
    noted = [Assumption.model_validate({"what": w, "value": v, "kind": k, "source": s})
             for w, v, k, s in (*parts.framework.assumptions, *of_lengths)]
    return (*autos, *noted)


def _of_memory(parts: Simulation, band: Band, held: Sequence[tuple[OutsideMemory, ...]]) -> tuple[Assumption, ...]:
    """Where parts of allocated, reserved and device come from, the largest of all ranks. None without a peak."""
    if not any(held):
        return ()
    counted = parts.framework.strategy.counts_workspaces
    away = {space: max(plan.elsewhere().get(space, 0) for plan in parts.plans)
            for plan in parts.plans for space in plan.elsewhere() if space != "managed"}
    kept = {space.name: space for spaces in parts.workspaces.values() for space in spaces if counted}
    beside = {one.category: one for ones in held for one in sorted(ones, key=lambda one: one.num_bytes)}
    return (*(Assumption(what=f"outside the device, {space}", value=f"{format_bytes(size)} on the rank with the most",
                         kind="derived", source="training.offload") for space, size in away.items()),
            *(Assumption(what=s.name, value=format_bytes(s.num_bytes), kind=s.kind, source=s.source)
              for s in kept.values()),
            *(Assumption(what=one.category, value=format_bytes(one.num_bytes), kind=one.kind, source=one.source)
              for one in beside.values()), _of_reserved(parts), _of_band(parts, band))


def _of_reserved(parts: Simulation) -> Assumption:
    shares = parts.shares()
    value = f"allocated + {shares.middle:.1%}, at most {shares.high:.1%}"
    if shares == ORDINARY:
        return Assumption(what="reserved_bytes", value=value, kind="calibrated", source="readings of both on one "
                          "rank: simumax-b200 (11), mbridge-card (6); low end: allocated, in segments")
    if shares == GATHERED:
        return Assumption(what="reserved_bytes", value=f"{value}, while there is room", kind="calibrated",
                          source="readings beside what is simulated: torchtitan (2), torchtitan-log (3); what is kept "
                          f"beyond {ORDINARY.middle:.1%} is cache that torch gives back before it fails")
    return Assumption(what="reserved_bytes", value=value, kind="assumed", source="expandable segments: no reading of "
                      "both on one rank; a replay of torch's allocator, see simcore/memory/reserved.py")


def _of_band(parts: Simulation, band: Band) -> Assumption:
    name = layout_class(parts.job, parts.framework)
    told = f"{band.num} observations" if band.num else "unvalidated: no measured run of this class"
    return Assumption(
        what="band_bytes", value=f"{name}: {band.low - 1:+.1%} to {band.high - 1:+.1%}, {told}",
        kind="calibrated" if band.num else "assumed", source="10% and 90% of measured over simulated, bands.json")
