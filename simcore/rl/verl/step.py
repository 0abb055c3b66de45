"""Phases of a step of verl's workers over FSDP 1 and 2: what moves, and the copy of weights that the engine is sent.

[Note: verl's step]
verl b178a3cd `trainer/ppo/ray_trainer.py` fit, `workers/fsdp_workers.py` ActorRolloutRefWorker, with the engine in a
server of its own on the same GPUs. After an update of the actor rollout_mode sends the weights: parameters come to the
device if they are away (param_offload), `state_dict()` makes a copy of every rank's part, parameters go away again, the
engine's weights wake, and one tensor after the other is gathered (`full_tensor`) and sent (`streams.py`). Then the copy
is freed, and the cache is allocated. Tokens are generated; the engine sleeps at level 2, unless free_cache_engine is
false. The actor makes log-probabilities (param_offload: its parameters come and go), and the reference policy, a model
of its own that FSDP keeps on the host (CPUOffload, whatever `ref.fsdp_config` says): each pass of a microbatch copies
each unit's part to the device. The actor trains with parameters and states on the device; both go away afterwards if
param_offload and optimizer_offload say so. Without them they stay there while tokens are generated.

[Note: state dict]
torch 2.13 `fsdp/_state_dict_utils.py` _sharded_pre_state_dict_hook: the root's parameters are gathered in their own
format, and stay until those of all layers were gathered one after the other; `_shard_utils.py` _create_chunk_dtensor
copies a tensor whole, and keeps a copy of the rank's rows. One rank alone has a full state dict, which copies every
parameter (`_full_post_state_dict_hook`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from simcore.hardware.topology import Topology
from simcore.placement.plan import Placed, Plan
from simcore.rl.step.critic import add_critic, make_values, train_critic
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import (
    ENGINE,
    FORWARD,
    GATHERS,
    POLICY,
    REFERENCE,
    REFIT,
    GrpoStep,
    away,
    back,
    generate,
    host_ns,
    packing_ns,
    put_asleep,
    score,
    start,
    train,
    wake,
)
from simcore.rl.step.policy import PARAMS, Policy
from simcore.rl.step.refit import Gather
from simcore.rl.verl.adapters import Adapted, refit_adapters
from simcore.rl.verl.reward import add_scorer, score_sequences
from simcore.rl.verl.streams import Stream
from simcore.units import dtype_bytes

__all__ = ["COPY", "Offloads", "StateDict", "Summoned", "shards_over", "summoned", "verl_step"]

COPY: Final = f"{POLICY}, state dict"
"""Owner of what a state dict holds beside the policy."""


class StateDict(Protocol):
    """A state dict of an actor, and the reference policy beside it, over one of torch's ways to share parameters.

    `part`: bytes of a part of a tensor that is brought from the host to be gathered.
    """

    @property
    def part(self) -> int:
        """Bytes, see above."""

    def make(self, journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
        """Adds the state dict, behind which parameters are away if they wait on the host."""

    def refer(self, journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
        """Adds the passes of a reference policy that rests on the host."""



@dataclass(frozen=True, slots=True)
class Summoned:
    """A state dict in parts: `kept`: bytes of the rank's copies; `transient`: most bytes in addition while it is made.

    `calls`: gathers of units, in the format in which parameters rest. `part`: most bytes of a rank's part of a unit
    that comes from the host, as it rests and as it is computed with.
    """

    kept: int
    transient: int
    calls: tuple[Gather, ...]
    part: int

    def make(self, journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
        """Adds the copy of all parts; parameters are on the device while it is made."""
        if offloads.params:
            back(journal, policy.params, topology)
        journal.spike(COPY, {PARAMS: self.kept, "all_gather_output": self.transient}, "state dict is made")
        journal.put(COPY, {PARAMS: self.kept}, event="state dict")
        if offloads.params:
            away(journal, policy.params, topology)

    def refer(self, journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
        """Adds the reference policy's passes: its parts are copied beside them, as far as these take as long."""
        num_bytes = sum(policy.copied.values())
        copied = offloads.passes * host_ns(num_bytes, topology, "to_device")
        journal.spike(REFERENCE, {**policy.passing, PARAMS: self.part}, "forward pass", {FORWARD: policy.passing_ns})
        journal.copy("to_device", offloads.passes * num_bytes, max(0, copied - policy.passing_ns))


@dataclass(frozen=True, slots=True)
class Offloads:
    """Settings of verl's workers: what is on the host where no pass needs it, and how weights go to the engine.

    `passes`: forward passes of the reference policy in a step, each of which copies its parameters to the device.
    `adapted`: of an actor with adapters, which is its own reference policy; None without.
    """

    params: bool
    optimizer: bool
    stream: Stream
    passes: int
    adapted: Adapted | None = None


def summoned(plan: Plan) -> Summoned:
    """Sizes in bytes of the actor's state dict on a rank, see [Note: state dict]."""
    units = [(unit, [_placed(plan, layer, number) for layer, numbers in unit.members for number in numbers])
             for unit in plan.framework.units]
    axis = shards_over(plan)
    ranks = plan.mesh.axis(axis).size
    full = {unit.name: sum(map(_bytes, placed)) for unit, placed in units}
    stored = next(one.policy.at_rest.dtype for _, placed in units for one in placed)
    widths = dtype_bytes(stored), dtype_bytes(plan.framework.compute_dtype)
    part = max(full.values()) // ranks * sum(widths) // widths[0]
    if ranks == 1:
        return Summoned(sum(full.values()), 0, (), part)
    root = sum(full[unit.name] for unit, _ in units if unit.is_root)
    largest = max((_bytes(one) for _, placed in units for one in placed), default=0)
    layers = max((full[unit.name] + max(map(_bytes, placed), default=0) for unit, placed in units if not unit.is_root),
                 default=0)
    kept = sum(_rows(one, ranks) for _, placed in units for one in placed)
    calls = tuple(Gather(axis, placed[0].policy.at_rest.dtype, full[unit.name], 1)
                  for unit, placed in units if placed)
    return Summoned(kept, root + max(largest, layers), calls, part)


def shards_over(plan: Plan) -> str:
    """Axis whose ranks share the actor's parameters, those that split sequences too."""
    return next(unit.shard_axis for unit in plan.framework.units)


def _placed(plan: Plan, layer: int, number: int) -> Placed:
    return plan.of_layer(layer)[number]


def _bytes(placed: Placed) -> int:
    """Bytes of the whole tensor as it rests."""
    return placed.spec.numel * placed.spec.copies * dtype_bytes(placed.policy.at_rest.dtype)


def _rows(placed: Placed, ranks: int) -> int:
    """Bytes of the rows of a tensor that the first of `ranks` keeps."""
    first = placed.spec.shape[0] if placed.spec.shape else 1
    return _bytes(placed) // first * -(-first // ranks)


def verl_step(policy: Policy, step: GrpoStep, topology: Topology, settings: tuple[Offloads, StateDict]) -> Journal:
    """Memory and time of a steady step of verl on one class of ranks, in the phases of `grpo_step`.

    See [Note: verl's step].
    """
    offloads, state = settings
    journal = start(policy, has_reference=step.has_reference and offloads.adapted is None)
    if offloads.params:
        journal.move(POLICY, "device", "host", policy.params)
    if offloads.optimizer:
        journal.move(POLICY, "device", "host", policy.states)
    _add_neighbours(journal, step)
    journal.begin("refit")
    _refit(journal, policy, step, topology, settings)
    journal.begin("generation")
    generate(journal, step, topology)
    if step.scorer is not None:
        score_sequences(journal, step.scorer, topology)
    journal.begin("logprob")
    _passing(journal, policy, topology, offloads)
    if step.has_reference:
        journal.begin("reference")
        if offloads.adapted is None:
            state.refer(journal, policy, topology, offloads)
        else:
            _passing(journal, replace(policy, scoring={}), topology, offloads)
    if step.critic is not None:
        make_values(journal, step.critic, topology)
        train_critic(journal, step.critic, topology)
    journal.begin("training")
    if offloads.params:
        back(journal, policy.params, topology)
    if offloads.optimizer:
        back(journal, policy.states, topology)
    train(journal, policy)
    if offloads.params:
        away(journal, policy.params, topology)
    if offloads.optimizer:
        away(journal, policy.states, topology)
    return journal


def _add_neighbours(journal: Journal, step: GrpoStep) -> None:
    """Adds critic, reward model and engine as the previous step left them."""
    if step.critic is not None:
        add_critic(journal, step.critic)
    if step.scorer is not None:
        add_scorer(journal, step.scorer)
    put_asleep(journal, step.engine)


def _passing(journal: Journal, policy: Policy, topology: Topology, offloads: Offloads) -> None:
    if offloads.params:
        back(journal, policy.params, topology)
    score(journal, policy)
    if offloads.params:
        away(journal, policy.params, topology)


def _refit(journal: Journal, policy: Policy, step: GrpoStep, topology: Topology,
           settings: tuple[Offloads, StateDict]) -> None:
    offloads, state = settings
    if offloads.adapted is not None:
        refit_adapters(journal, policy, step, topology, offloads.adapted, offloads=offloads.params,
                       stream=offloads.stream)
        return
    state.make(journal, policy, topology, offloads)
    wake(journal, step.engine, topology)
    sizes, moved = offloads.stream(step.gathered)
    parts, hosted = {GATHERS: step.gathered.ns, **packing_ns(step, topology, moved)}, policy.hosted.get(PARAMS, 0)
    journal.spike(REFIT, {**sizes, **({PARAMS: state.part} if hosted else {})}, "weights are streamed", parts)
    if hosted:
        journal.copy("to_device", hosted, host_ns(hosted, topology, "to_device"))
    journal.drop(COPY, "device")
    if step.engine.generation.sleep_level:
        journal.put(ENGINE, step.engine.cached, event="cache wakes")
