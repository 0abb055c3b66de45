"""Bytes and times of TRL's policy on a class of ranks: all of it stays on the device in all phases.

[Note: passes of the policy]
TRL 1.16.0 `trainer/grpo_trainer.py` _generate_and_score_completions: under torch.no_grad() and accelerate's autocast,
with checkpoints off, `per_device_train_batch_size` sequences at a time. Parameters are those that train, so that copies
which autocast makes of them last as long as a forward pass.

[Note: generate]
`model.generate` of transformers, of all sequences of a rank at once. Under ZeRO 3 all parameters are gathered before
(`ds3_gather_for_generation`), and hooks are taken off; then each token is a pass of a model that is whole. Otherwise
each token's pass gathers what the framework's hooks gather.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simcore.frameworks.registry import asked_adapter
from simcore.frameworks.summons import Summons
from simcore.inputs.scenario import Mesh, Scenario
from simcore.results.report import RankReport, Report
from simcore.rl.step.forward import Passes
from simcore.rl.trl.amounts import Amounts
from simcore.simulation.evaluation import generated
from simcore.simulation.simulation import Simulation, placed_simulation
from simcore.units import dtype_bytes

__all__ = ["Generating", "Held", "generating", "held_of", "summons_of", "whole_bytes", "without"]

_LOOSE = "fragmentation"


@dataclass(frozen=True, slots=True)
class Held:
    """The policy on one class of ranks: bytes by category, and times in ns of one step.

    `rest`: parameters, states and buffers that are there in all phases; `outside`: context, NCCL; `passing`,
    `training`: in addition at the highest moment of a pass, of an optimizer step; `grads`: of all gradients.
    `passing_ns`: of the passes over all that is generated in the step; `training_ns`: of all optimizer steps.
    """

    rest: Mapping[str, int]
    outside: Mapping[str, int]
    passing: Mapping[str, int]
    training: Mapping[str, int]
    grads: int
    passing_ns: int
    training_ns: int


def held_of(trained: Report, forward: Passes, simulation: Simulation, ns: tuple[int, int]) -> list[Held]:
    """The policy of each class of ranks, in the report's order. `ns`: of (all passes, all optimizer steps)."""
    return [_held(rank, dict(rest), dict(above), simulation, ns)
            for rank, rest, above in zip(trained.ranks, forward.rest, forward.above, strict=True)]


def _held(rank: RankReport, rest: dict[str, int], above: dict[str, int], simulation: Simulation,
          ns: tuple[int, int]) -> Held:
    peak = rank.peak
    assert peak is not None
    beside = {name: max(0, size - rest.get(name, 0)) for name, size in peak.by_category.items()}
    loose = peak.device_bytes - peak.allocated_bytes - sum(peak.outside.values())
    passing = sum(rest.values()) + sum(above.values())
    grads = sum(part.grads_bytes for part in rank.at_rest.values())
    return Held(rest, peak.outside, {**above, _LOOSE: simulation.needed(passing).middle - passing},
                {**beside, _LOOSE: loose}, grads, *ns)


def without(held: Held, rest: Mapping[str, int]) -> Held:
    """The policy whose optimizer steps have counted what `rest`s beside it, less that."""
    return replace(held, training={name: size - rest.get(name, 0) for name, size in held.training.items()})


def summons_of(scenario: Scenario) -> Summons:
    """Way in which the scenario's framework makes parameters whole outside of a pass; TRL's GRPO is refused without."""
    found = asked_adapter(scenario).summons
    assert found is not None
    return found


def whole_bytes(simulation: Simulation) -> int:
    """Bytes of all parameters as operators use them, adapters with them."""
    plan = simulation.plans[0]
    return sum(count * placed.spec.numel * placed.spec.copies * dtype_bytes(placed.policy.in_use.dtype)
               for kind, count in plan.kind_counts for placed in plan.kinds[kind]
               if placed.spec.is_owned and not placed.spec.is_buffer)


# ---- generate --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Generating:
    """Generation by the policy itself: bytes by category in addition to what rests, and time in ns of one cycle."""

    above: Mapping[str, int]
    ns: int


def generating(trained: Scenario, amounts: Amounts, gathered: int, *, timed: bool) -> Generating:
    """Generation of a rank's sequences. `trained`: scenario of a training step; `gathered`: bytes of all parameters.

    `gathered` is 0 where they are not gathered before. See [Note: generate].
    """
    scenario = _whole(trained) if gathered else _scored_by_itself(trained)
    simulation = placed_simulation(scenario)
    found = generated(simulation, amounts.per_rank, max(1, amounts.prompt), amounts.new, "rl", timed=timed)
    filled, cached = (max(0, *(size - rest for size, rest in zip(sizes, found.rest, strict=True)))
                      for sizes in (found.filled, found.cached))
    cache, most = (found.states, filled) if filled > cached else (found.full, cached)
    sizes = {"kv_cache": cache, "activation": most - cache, "unsharded_param": gathered}
    return Generating({name: size for name, size in sizes.items() if size}, found.ns or 0)


def _scored_by_itself(trained: Scenario) -> Scenario:
    """The model's own forward, which makes logits: the head of log-probabilities is not in it."""
    return _with(trained, loss="auto", scored_tokens=None)


def _whole(trained: Scenario) -> Scenario:
    """The same on ranks that each have all parameters, in the format of products."""
    mesh = Mesh(dp_replicate=trained.world_size)
    precision = trained.training.precision.model_copy(update={"params": "auto"})
    offload = trained.training.offload.model_copy(update=dict.fromkeys(("params", "optimizer", "gradients"), "none"))
    scenario = _with(trained, loss="auto", scored_tokens=None, precision=precision, offload=offload)
    framework = summons_of(trained).whole_as
    return scenario.model_copy(update={"framework": framework, "mesh": mesh, "framework_options": {}})


def _with(trained: Scenario, **changed: Any) -> Scenario:
    return trained.model_copy(update={"training": trained.training.model_copy(update=changed)})
