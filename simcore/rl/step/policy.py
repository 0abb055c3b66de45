"""Bytes of a policy on one class of ranks, and the parts that move between the device and the host.

[Note: what moves]
NeMo RL main of 2026-08-22 (7ea279ab). DTensor workers (`models/policy/workers/dtensor_policy_worker_v2.py`) move the
whole module, and every tensor of the optimizer's state. Megatron workers (`megatron_policy_worker.py` move_model,
move_optimizer) move the buffers of Megatron's DDP: parameters that learn. Frozen parameters, a LoRA base among them,
are in no such buffer and stay on the device; so do master parameters, unless they are states of a precision-aware
optimizer. Gradient buffers are freed. Workspaces of libraries stay. With cpu_offload (CPUOffloadPolicy) parameters and
states rest on the host, gradients too while there are some: a refit moves all parameters to the device and back
(stream_weights_via_ipc_zmq, offload_after_refit), nothing else moves but buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from simcore.placement.plan import Plan
from simcore.results.report import RankReport
from simcore.simulation.simulation import Simulation
from simcore.vllm.engine import Engine

__all__ = ["PARAMS", "WORKSPACE", "Critic", "Policy", "Scorer", "hosted_bytes",
           "on_same_gpus", "policy_of"]

T = TypeVar("T")
PARAMS: Final = "sharded_param"
_GRADS: Final = "sharded_grad"
_KEPT: Final = (_GRADS, "main_grad")
_CATEGORIES: Final = {"parameters": PARAMS, "gradients": _GRADS, "optimizer states": "opt_state"}
WORKSPACE: Final = "workspace"
_PRECISE = "use_precision_aware_optimizer"


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy (the model in training) on one class of ranks: bytes by category on each rank, and times.

    `params`: parameters and buffers that move between device and host; `states`: optimizer states that move; `fixed`:
    bytes that never leave the device; `copied`: all parameters and buffers, as a reference policy has them; `outside`:
    context, NCCL, dispatcher; `passing`: bytes in addition to all parameters at the highest moment of a forward pass;
    `training`: bytes in addition to these and the states at that of a training step. `passing_ns`, `training_ns`: time
    of all forward passes of one RL step (one policy's), of all its training steps. `hosted`: what rests on the host
    instead (cpu_offload); `hosted_grads`: gradients there in a training step. `scoring`: as `passing`, of the policy's
    own passes where more is made of their logits than in a reference policy's. `grads`: those of `training` whose
    storage outlasts the step, unless a trainer frees it; `all_grads`: bytes of all gradients on the device.
    """

    params: Mapping[str, int]
    states: Mapping[str, int]
    fixed: Mapping[str, int]
    copied: Mapping[str, int]
    outside: Mapping[str, int]
    passing: Mapping[str, int]
    training: Mapping[str, int]
    passing_ns: int
    training_ns: int
    hosted: Mapping[str, int] = field(default_factory=dict)
    hosted_grads: int = 0
    scoring: Mapping[str, int] = field(default_factory=dict)
    grads: Mapping[str, int] = field(default_factory=dict)
    all_grads: int = 0

    @property
    def highest(self) -> int:
        """Bytes on the device at the highest moment of a training step."""
        return sum(sum(sizes.values()) for sizes in (self.params, self.states, self.fixed, self.outside, self.training))


@dataclass(frozen=True, slots=True)
class Critic:
    """The critic of PPO on one class of ranks: its bytes and times, as a policy's, and what is on the host.

    `offloads_params`, `offloads_states`: parameters, and optimizer states, are on the host where no pass needs them.
    `model.outside`: memory outside the allocator that it adds to the policy's, whose process it shares.
    """

    model: Policy
    offloads_params: bool
    offloads_states: bool


@dataclass(frozen=True, slots=True)
class Scorer:
    """A reward model in an engine of its own: `sequences` that one engine scores in a step, in `ns`."""

    engine: Engine
    sequences: int
    ns: int


def policy_of(rank: RankReport, plan: Plan, rest: Mapping[str, int], above: Mapping[str, int], simulation: Simulation,
              ns: tuple[int, int]) -> Policy:
    """Bytes of the policy on one class of ranks. `rank`: its report of a training step; `plan`: its placed tensors.

    `rest`, `above`: bytes by category before its forward passes, and in addition at their peak. `ns`: duration in ns of
    (all forward passes, all training steps) of one RL step.
    """
    peak, states = rank.peak, _states(plan)
    assert peak is not None
    resting = {category: rest.get(category, 0) + states.get(category, 0) for category in (*rest, *states)}
    beside = {category: max(0, size - resting.get(category, 0)) for category, size in peak.by_category.items()}
    loose = peak.device_bytes - peak.allocated_bytes - sum(peak.outside.values())
    passing = sum(rest.values()) + sum(above.values())
    fragments = simulation.needed(passing).middle - passing
    moving = _moving(plan, simulation, rest, states)
    fixed = {category: size - moving.get(category, 0) for category, size in resting.items()}
    hosted = hosted_bytes(plan)
    grads = hosted.pop(_GRADS, 0)
    copied = {category: size for category, size in rest.items() if category != WORKSPACE}
    if PARAMS in hosted:
        copied[PARAMS] = copied.get(PARAMS, 0) + hosted[PARAMS]
    return Policy(
        {category: size for category, size in moving.items() if category in rest},
        {category: size for category, size in moving.items() if category in states},
        {category: size for category, size in fixed.items() if size},
        copied, peak.outside, {**above, "fragmentation": fragments}, {**beside, "fragmentation": loose}, *ns, hosted,
        grads, grads={name: beside[name] for name in _KEPT if rank.grads_persist and beside.get(name)},
        all_grads=sum(part.grads_bytes for part in rank.at_rest.values()) - grads)


def hosted_bytes(plan: Plan) -> dict[str, int]:
    """Bytes on the host by category, without what is pinned for a while."""
    found: dict[str, int] = {}
    for kind, count in plan.kind_counts:
        for what, space, size in (one for placed in plan.kinds[kind] for one in placed.elsewhere):
            if space.startswith("host"):
                category = _CATEGORIES[what]
                found[category] = found.get(category, 0) + count * size
    return found


def _states(plan: Plan) -> dict[str, int]:
    """Bytes of optimizer states on the device, by category."""
    states: dict[str, int] = {}
    for kind, count in plan.kind_counts:
        for name, size in plan.kinds[kind].state_bytes.items():
            category = "main_param" if name == "master_param" else "opt_state"
            states[category] = states.get(category, 0) + count * size
    return {category: size for category, size in states.items() if size}


def _moving(plan: Plan, simulation: Simulation, rest: Mapping[str, int], states: Mapping[str, int]) -> dict[str, int]:
    """Bytes by category that move, see [Note: what moves]."""
    if plan.framework.strategy.rl_worker.is_module:
        return {category: size for category, size in {**rest, **states}.items() if category != WORKSPACE}
    learns = sum(count * placed.rest_bytes for kind, count in plan.kind_counts
                 for placed in plan.kinds[kind] if placed.trainable)
    kept = () if _is_precise(simulation) else ("main_param",)
    return {"sharded_param": min(learns, rest.get("sharded_param", 0)),
            **{category: size for category, size in states.items() if category not in kept}}


def _is_precise(simulation: Simulation) -> bool:
    """True if master parameters are states of the optimizer."""
    requested, key = simulation.job.scenario.framework_options.get(_PRECISE), f"framework_options.{_PRECISE}"
    return bool(requested) if requested is not None else simulation.framework.default(key) == "true"


def on_same_gpus(found: Sequence[T], own: Simulation, policy: Simulation, size: Callable[[T], int]) -> list[T]:
    """For each class of the policy's ranks, what is there of another model; of several, the largest by `size`.

    `found`: the other model on each class of its `own` ranks. Both meshes number the same ranks.
    """
    there = [(one, frozenset(of.members(own.job.mesh).tolist())) for one, of in zip(found, own.classes, strict=True)]
    members = (frozenset(of.members(policy.job.mesh).tolist()) for of in policy.classes)
    return [max((one for one, ranks in there if not ranks.isdisjoint(mine)), key=size) for mine in members]
