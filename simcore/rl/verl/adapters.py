"""Adapters of verl's actor over FSDP 1: how they, and the base, get to the engine in each step.

[Note: verl's adapters]
verl b178a3cd `workers/fsdp_workers.py` rollout_mode, `utils/fsdp_utils.py` collect_lora_params. All parameters are
summoned, whole and in their own format, on every rank, and adapters are copied to the host. The engine sleeps at level
2, so that its base is gone: all parameters are summoned again, the module moves to the host, where its state dict is
kept, and back to the device, beside the whole parameters. Then the base is streamed from the host into the engine's
buffer, and adapters behind it. With `layered_summon` layer by layer is summoned, and adapters alone are sent. Rank 0
alone has whole parameters at rest (NO_SHARD), which are summoned without a gather. A reference policy is the actor
itself without its adapters (compute_ref_log_prob): no model beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simcore.errors import IllegalLayout, InputError, Problem
from simcore.frameworks.registry import asked_adapter
from simcore.hardware.topology import Topology
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Placed, Plan
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import ENGINE, GATHERS, POLICY, REFIT, GrpoStep, away, back, host_ns, packing_ns, wake
from simcore.rl.step.policy import Policy
from simcore.rl.step.refit import Gather, Gathered, gathering_ns
from simcore.rl.verl.streams import Stream
from simcore.timing.routes import Routes
from simcore.units import dtype_bytes

__all__ = ["Adapted", "adapted", "are_units", "check_adapters", "refit_adapters", "sent_adapters"]

_HOSTED: Final = f"{POLICY}, state dict"
_SENT: Final = 2
"""Bytes of an element as it is sent to the engine."""
_LORA_RANK: Final = 16
"""Default of `generation.max_lora_rank`."""
_SUMMONS: Final = 2
"""Times that all parameters are summoned in a step: for adapters, and for the base."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """Bytes of an adapted actor: `whole`: all parameters as they rest; `layer`: the largest layer's, adapters too.

    `adapters`, `base`: of those as the engine is sent them; `calls`: gathers of all units once, of layers alone where
    they are summoned one by one (`layered`). `ranks`: that share parameters.
    """

    whole: int
    layer: int
    adapters: int
    base: int
    calls: tuple[Gather, ...]
    layered: bool
    ranks: int

    @property
    def transient(self) -> int:
        """Most bytes on the device beside parameters at rest while they are summoned."""
        gathered = self.ranks > 1
        return self.layer * gathered if self.layered else self.whole * (1 + gathered)

    @property
    def hosted(self) -> int:
        """Bytes of the base's state dict on a rank's host."""
        return 0 if self.layered else self.whole


def adapted(plan: Plan, *, layered: bool) -> Adapted:
    """Sizes of an adapted actor's parameters on a rank, see [Note: verl's adapters]."""
    units = [(unit, [plan.of_layer(layer)[number] for layer, numbers in unit.members for number in numbers])
             for unit in plan.framework.units]
    axis = next(unit.shard_axis for unit in plan.framework.units)
    ranks = plan.mesh.axis(axis).size
    full = [(unit, sum(map(_bytes, placed)), placed) for unit, placed in units if placed]
    of_layers: dict[int, int] = {}
    for unit, size, _ in full:
        if not unit.is_root:
            of_layers[unit.first] = of_layers.get(unit.first, 0) + size
    calls = tuple(Gather(axis, placed[0].policy.at_rest.dtype, size, 1) for unit, size, placed in full
                  if ranks > 1 and not (layered and unit.is_root))
    sent = [(placed.spec.module == "adapter", placed.spec.numel * placed.spec.copies * _SENT)
            for _, _, found in full for placed in found]
    return Adapted(sum(size for _, size, _ in full), max(of_layers.values(), default=0),
                   sum(size for is_adapter, size in sent if is_adapter),
                   sum(size for is_adapter, size in sent if not is_adapter), calls, layered, ranks)


def _bytes(placed: Placed) -> int:
    """Bytes of the whole tensor as it rests."""
    return placed.spec.numel * placed.spec.copies * dtype_bytes(placed.policy.at_rest.dtype)


def sent_adapters(plan: Plan, routes: Routes, *, layered: bool) -> Gathered:
    """Gathers of a step, and bytes that the engine is sent: adapters, and the base unless `layered`."""
    sizes = adapted(plan, layered=layered)
    calls = sizes.calls if layered else sizes.calls * _SUMMONS
    total = sizes.adapters + (0 if layered else sizes.base)
    largest = max(placed.spec.numel * _SENT for kind, _ in plan.kind_counts for placed in plan.kinds[kind]
                  if placed.spec.is_owned and (not layered or placed.spec.module == "adapter"))
    return Gathered(sizes.transient, largest, total, calls, gathering_ns(calls, routes))


def refit_adapters(journal: Journal, policy: Policy, step: GrpoStep, topology: Topology, sizes: Adapted, *,
                   offloads: bool, stream: Stream) -> None:
    """Adds what a refit of an adapted actor does; `offloads`: its parameters are on the host before and afterwards."""
    if offloads:
        back(journal, policy.params, topology)
    journal.spike(_HOSTED, {"all_gather_output": sizes.transient}, "parameters are summoned",
                  {GATHERS: step.gathered.ns})
    for way in ("to_host", "to_device"):
        journal.copy(way, sizes.hosted, host_ns(sizes.hosted, topology, way))
    journal.copy("to_host", sizes.adapters, host_ns(sizes.adapters, topology, "to_host"))
    journal.put(_HOSTED, {"sharded_param": sizes.hosted + sizes.adapters}, "host")
    if offloads:
        away(journal, policy.params, topology)
    wake(journal, step.engine, topology)
    buffers, moved = stream(replace(step.gathered, transient=0))
    journal.spike(REFIT, buffers, "weights are streamed", packing_ns(step, topology, moved))
    journal.copy("to_device", step.gathered.total, host_ns(step.gathered.total, topology, "to_device"))
    journal.drop(_HOSTED, "host")
    if step.engine.generation.sleep_level:
        journal.put(ENGINE, step.engine.cached, event="cache wakes")


# ---- what is refused -------------------------------------------------------------------------------------------------
def are_units(scenario: Scenario) -> bool:
    """True if each matrix of an adapter is a unit, which verl's policy makes it (utils/fsdp_utils.py:100)."""
    needed = asked_adapter(scenario).needs.get("lora", {})
    return all(scenario.framework_options.get(name) == value for name, value in needed.items())


def check_adapters(scenario: Scenario) -> None:
    """IllegalLayout for an engine, or a reference policy, that does not suit the actor's adapters."""
    rl, training, generation = scenario.rl, scenario.training, scenario.generation
    assert rl is not None
    assert generation is not None
    has, rank = training.method != "full", training.lora.rank
    if rl.layered_summon and not has:
        raise InputError(Problem(scenario.where("rl", "layered_summon"), "layered_summon: changes nothing without "
                                 "adapters"))
    if generation.max_loras != int(has) or (has and generation.max_lora_rank < rank) or (
            not has and generation.max_lora_rank != _LORA_RANK):
        told = f"1 and max_lora_rank: {rank} or more" if has else "0, as the actor has no adapters"
        raise IllegalLayout(Problem(scenario.where("generation", "max_loras"), f"max_loras: {generation.max_loras}: "
                                    f"expected {told}", "verl b178a3cd workers/rollout/vllm_rollout/"
                                    "vllm_async_server.py:350"))
    if has and rl.reference == "host":
        raise IllegalLayout(Problem(scenario.where("rl", "reference"), "reference: host: an actor with adapters is its "
                                    "own reference policy (device)", "verl b178a3cd workers/fsdp_workers.py "
                                    "compute_ref_log_prob"))
