"""verl's workers over FSDP 2: a state dict of DTensors, a reference policy on the host, and what is refused.

[Note: state dict of DTensors]
verl b178a3cd `workers/fsdp_workers.py` rollout_mode: `state_dict()` of a module that `fully_shard` has cut makes no
tensor: its entries refer to the ranks' parts (`tests/truth/draw_verl_fsdp2.py`). Where parameters go away
(param_offload) `model.cpu()` puts others in their place (torch 2.13 `nn/modules/module.py` _apply), and the entries
still hold those of the device until all weights were sent. Each entry is gathered by `full_tensor()`, from the host by
way of the device where parameters rest there (offload_policy).

[Note: reference policy of DTensors]
The reference policy has CPUOffloadPolicy, whatever `ref.fsdp_config` says: its passes are those of a model whose parts
are copied to the device before each gather, on a stream of their own (torch 2.13 `_fsdp_collectives.py`
foreach_all_gather).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.errors import IllegalLayout, NotYet, Problem
from simcore.frameworks.registry import asked_adapter
from simcore.hardware.topology import Topology
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Placed, Plan
from simcore.rl.step.forward import passes
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import FORWARD, REFERENCE, away, back, host_ns
from simcore.rl.step.policy import PARAMS, Policy
from simcore.rl.verl.step import COPY, Offloads
from simcore.simulation.simulation import Simulation, placed_simulation

__all__ = ["Referred", "check_fsdp2", "referred", "turned"]

_FRONT: Final = "separate_embedding"
_ROOT: Final = "layers_root"
_HOST: Final = ("params", "gradients", "optimizer")
_UNITS: Final = "verl b178a3cd utils/fsdp_utils.py apply_fsdp2"


@dataclass(frozen=True, slots=True)
class Referred:
    """A state dict that refers to the ranks' parts. `part`: most bytes of one that comes from the host to be gathered.

    `passing`: bytes, by category, in addition to buffers at the highest moment of a reference policy's passes.
    """

    part: int
    passing: dict[str, int]

    def make(self, journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
        """Adds the state dict, see [Note: state dict of DTensors]."""
        if offloads.params:
            back(journal, policy.params, topology)
            journal.put(COPY, {PARAMS: policy.params.get(PARAMS, 0)}, event="state dict")
            away(journal, policy.params, topology)

    def refer(self, journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
        """Adds the reference policy's passes: its parts are copied beside them, as far as these take as long.

        An actor that rests on the host has the same copies in its own passes, whose traffic stands for both.
        """
        num_bytes = 0 if policy.hosted.get(PARAMS) else offloads.passes * policy.copied.get(PARAMS, 0)
        copied = host_ns(num_bytes, topology, "to_device") if num_bytes else 0
        journal.spike(REFERENCE, self.passing, "forward pass", {FORWARD: policy.passing_ns})
        journal.copy("to_device", num_bytes, max(0, copied - policy.passing_ns))


def referred(scenario: Scenario, passing: Simulation, plan: Plan, *, made: float) -> Referred:
    """The state dict and the reference policy of an actor. `passing`: simulation of its own passes.

    `made`: tensors in fp32 of the logits' size that a reference policy's pass makes of them.
    """
    part = max((placed.rest_bytes for kind, _ in plan.kind_counts for placed in plan.kinds[kind]
                if placed.spec.is_owned and not placed.spec.is_buffer), default=0)
    if scenario.rl is None or scenario.rl.reference == "none":
        return Referred(part, {})
    hosted = _hosted(passing)
    forward = passes(hosted, timed=False, in_place=True, beside=made)
    rest, above = max(zip(forward.rest, forward.above, strict=True), key=lambda both: sum(both[1].values()))
    total = sum(rest.values()) + sum(above.values())
    return Referred(part, {**above, "fragmentation": hosted.needed(total).middle - total})


def _hosted(passing: Simulation) -> Simulation:
    """Simulation of the same passes of a model that rests on the host."""
    asked = passing.job.scenario
    offload = asked.training.offload.model_copy(update=dict.fromkeys(_HOST, "host"))
    return placed_simulation(asked.model_copy(update={
        "training": asked.training.model_copy(update={"offload": offload})}))


# ---- refusals --------------------------------------------------------------------------------------------------------
def check_fsdp2(scenario: Scenario, passing: Simulation) -> None:
    """Raises NotYet or IllegalLayout for an actor that verl's workers do not wrap so, or that is not described."""
    implementation = passing.job.graph.implementation
    if implementation not in asked_adapter(scenario).verl_wraps:
        raise NotYet(Problem(scenario.where("framework"), f"not yet: verl's workers over {scenario.framework} with "
                             f"layers of {implementation} (served: fsdp1 and fsdp2 with transformers', and megatron)"))
    if passing.job.graph.architecture.has_tower:
        raise NotYet(Problem(scenario.where("model"), "not yet: a model with a vision tower by verl's workers over "
                             "FSDP 2, of which each embedding may be a unit"))
    if scenario.training.method != "full":
        raise NotYet(Problem(scenario.where("training", "method"), "not yet: adapters of verl's workers over FSDP 2"))
    _check_units(scenario, passing)
    _check_placements(scenario, passing.plans[0])
    if scenario.rl is not None and scenario.rl.reference == "host":
        _hosted(passing)


def _check_units(scenario: Scenario, passing: Simulation) -> None:
    options, has_tied_head = scenario.framework_options, passing.job.graph.has_tied_head
    expected = _ROOT if has_tied_head else _FRONT
    if options.get("wrap", _ROOT) != expected:
        raise IllegalLayout(Problem(scenario.where("framework_options", "wrap"), f"wrap: expected {expected} of a "
                                    f"head that is {'' if has_tied_head else 'not '}tied to the embedding", _UNITS))
    if not isinstance(options.get("reshard_after_forward"), bool):
        raise IllegalLayout(Problem(scenario.where("framework_options", "reshard_after_forward"),
                                    "reshard_after_forward: expected true or false, for the root too",
                                    "verl b178a3cd workers/config/engine.py FSDPEngineConfig"))


def _check_placements(scenario: Scenario, plan: Plan) -> None:
    """NotYet for parameters that are cut on another dimension than their first."""
    for placed in turned(plan):
        raise NotYet(Problem(scenario.where("mesh"), f"not yet: {placed.spec.path} of {placed.spec.shape} over "
                             f"{plan.mesh.axis(_axis(plan)).size} ranks: verl cuts the first dimension that they "
                             "divide (verl b178a3cd utils/fsdp_utils.py get_shard_placement_fn)"))


def turned(plan: Plan) -> list[Placed]:
    """Parameters, layer by layer, that verl cuts on another dimension than their first, which the ranks do not divide.

    verl b178a3cd `utils/fsdp_utils.py` get_shard_placement_fn: where they divide none, the first is cut and padded.
    """
    ranks = plan.mesh.axis(_axis(plan)).size
    return [placed for layer in plan.layers for placed in plan.of_layer(layer)
            if placed.spec.is_owned and not placed.spec.is_buffer and _is_turned(placed.spec.shape, ranks)]


def _axis(plan: Plan) -> str:
    return next(unit.shard_axis for unit in plan.framework.units)


def _is_turned(shape: tuple[int, ...], ranks: int) -> bool:
    first, *others = shape or (1,)
    return first % ranks != 0 and any(size % ranks == 0 for size in others)
