"""The critic of PPO that is trained beside the policy: its simulated passes, and its phases of a step.

NeMo RL's critic has processes and degrees of parallelism of its own, see [Note: the order of PPO] in `ppo.py`.

[Note: verl's critic]
verl b178a3cd `workers/fsdp_workers.py:1176` CriticWorker, `workers/critic/dp_critic.py`. A model for token
classification with one label, built as the actor is, in the actor's process (`trainer/main_ppo.py`: workers of one pool
are colocated), so that context, default group and workspaces are shared; a mesh of two axes has groups of its own. Its
values are made after the log-probabilities (`trainer/ppo/ray_trainer.py` fit), then it is trained, before the actor.
compute_values brings its parameters to the device and away again if `param_offload` says so, update_critic its
optimizer states too; otherwise both stay on the device in all phases. FSDP never keeps it on the host
(fsdp_workers.py:1428). Gradients are freed at the end. Options of the framework are the policy's, but for those
of its adapters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.registry import asked_adapter
from simcore.hardware.topology import Topology
from simcore.inputs import generation
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Lora
from simcore.results.report import TrafficRow
from simcore.rl.step.forward import passes
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import CRITIC, FORWARD, STEPS, away, back, outside
from simcore.rl.step.policy import Critic, Policy, on_same_gpus, policy_of
from simcore.rl.step.traffic import of_passes, of_steps
from simcore.simulation.simulation import Simulation, legal_simulation, placed_simulation
from simcore.simulation.step import Request, check_step, training_step

__all__ = ["Critics", "add_critic", "check_critic", "critics_of", "make_values", "merged",
           "train_critic"]

_OWN: Final = ("mesh", "sequence_parallel", "implementation", "framework_options")
"""Keys of a critic that has processes of its own."""
_MAIN: Final = "main_param"
_SHARED: Final = ("context",)
"""Memory outside the allocator that a process has once."""


@dataclass(frozen=True, eq=False)
class Critics:
    """Critics of all classes of ranks, in the policy's order, and what each sends in a step; None without a critic."""

    critics: tuple[Critic | None, ...]
    sent: tuple[tuple[TrafficRow, ...], ...]


# ---- simulated -------------------------------------------------------------------------------------------------------
def critics_of(scenario: Scenario, sequences: int, request: Request, policy: Simulation, *,
               apart: bool) -> Critics:
    """Critics of a step with `sequences` sequences, for each class of ranks of the `policy`.

    `apart`: in processes of its own. Of a class on several ranks of the critic's, the fullest counts. Raises
    InputError, IllegalLayout and NotYet as its training step and its passes do, at the block `rl.critic`.
    """
    asked = scenario.rl.critic if scenario.rl is not None else None
    if asked is None:
        count = len(policy.classes)
        return Critics((None,) * count, ((),) * count)
    _check_own(scenario, asked, apart=apart)
    try:
        return _simulated(scenario, asked, sequences, request, policy, apart=apart)
    except (InputError, IllegalLayout, NotYet) as error:
        raise type(error)(_placed(scenario, error.problems)) from None


def check_critic(scenario: Scenario, sequences: int, *, apart: bool) -> None:
    """Raises what `critics_of` does, without simulating steps; nothing without a critic."""
    asked = scenario.rl.critic if scenario.rl is not None else None
    if asked is None:
        return
    _check_own(scenario, asked, apart=apart)
    try:
        check_step(legal_simulation(_trained(scenario, asked, _batch(scenario, asked, sequences))))
        placed_simulation(_passing(scenario, asked, sequences))
    except (InputError, IllegalLayout, NotYet) as error:
        raise type(error)(_placed(scenario, error.problems)) from None


def _check_own(scenario: Scenario, asked: generation.Critic, *, apart: bool) -> None:
    """InputError for keys of the other kind of critic."""
    for name in ("param_offload", "optimizer_offload") if apart else _OWN:
        if name in asked.model_fields_set and getattr(asked, name) != getattr(generation.Critic(), name):
            why = "a critic is on the host but for its passes" if apart else "a critic is as the policy"
            raise InputError(Problem(scenario.where("rl", "critic", name), f"critic: {name} changes nothing: {why}"))


def _placed(scenario: Scenario, problems: Iterable[Problem]) -> list[Problem]:
    where = scenario.where("rl", "critic")
    return [replace(one, where=where, message=f"critic: {one.message.removeprefix('critic: ')}") for one in problems]


def _batch(scenario: Scenario, asked: generation.Critic, sequences: int) -> int:
    if asked.mesh is not None and asked.mesh.world_size != scenario.world_size:
        raise InputError(Problem("", f"mesh: expected the {scenario.world_size} ranks of the policy, whose GPUs a "
                                     f"critic shares, got {asked.mesh.world_size}"))
    batch = asked.global_batch_size or scenario.training.global_batch_size or sequences
    if sequences % batch:
        raise InputError(Problem("", f"global_batch_size: expected a divisor of prompts x generations = {sequences}, "
                                     f"got {batch}"))
    return batch


def _of_critic(scenario: Scenario, asked: generation.Critic, **changed: Any) -> Scenario:
    """Scenario of a training step of the critic alone."""
    precision = scenario.training.precision
    stored = precision.params if asked.params == "auto" else asked.params
    needed = asked_adapter(scenario).needs.get(scenario.training.method, {})
    split = scenario.training.sequence_parallel if asked.sequence_parallel is None else asked.sequence_parallel
    training = scenario.training.model_copy(update={
        "loss": "values", "precision": precision.model_copy(update={"params": stored}), "logprob_chunk_size": None,
        "method": "full", "lora": Lora(), "sequence_parallel": split, **changed})
    given = scenario.framework_options if asked.framework_options is None else asked.framework_options
    options = {name: value for name, value in given.items() if name not in needed}
    return scenario.model_copy(update={
        "workload": "train", "rl": None, "generation": None, "training": training, "mesh": asked.mesh or scenario.mesh,
        "model": asked.model or scenario.model, "framework_options": options,
        "implementation": scenario.implementation if asked.implementation == "auto" else asked.implementation})


def _trained(scenario: Scenario, asked: generation.Critic, batch: int) -> Scenario:
    return _of_critic(scenario, asked, micro_batch_size=asked.micro_batch_size, global_batch_size=batch,
                      recompute=asked.recompute)


def _passing(scenario: Scenario, asked: generation.Critic, sequences: int) -> Scenario:
    return _of_critic(scenario, asked, micro_batch_size=asked.values_batch_size, global_batch_size=sequences,
                      recompute="none")


def _simulated(scenario: Scenario, asked: generation.Critic, sequences: int, request: Request, policy: Simulation, *,
               apart: bool) -> Critics:
    batch = _batch(scenario, asked, sequences)
    passing = _passing(scenario, asked, sequences)
    simulation, count = placed_simulation(passing), passing.num_microbatches
    forward = passes(simulation, timed=request.timed, in_place=True)
    trained = training_step(_trained(scenario, asked, batch), replace(request, series=False))
    steps = sequences // batch * (scenario.rl.epochs if scenario.rl else 1)
    ns = forward.total_ns(count), steps * round((trained.time.step_s if trained.time else 0.0) * 1e9)
    plans = placed_simulation(_trained(scenario, asked, batch)).plans
    models = [policy_of(*each, simulation, ns) for each in zip(trained.ranks, plans, forward.rest, forward.above,
                                                               strict=True)]
    own = models if apart else [_in_the_policys_process(model, scenario) for model in models]
    sent = tuple((*of_passes(made, "values"), *merged(of_passes(of_steps(rank.traffic, steps), CRITIC)))
                 for made, rank in zip(forward.traffic(simulation, count), trained.ranks, strict=True))
    there = [(Critic(model, asked.param_offload or apart, asked.optimizer_offload or apart), rows)
             for model, rows in zip(own, sent, strict=True)]
    found = on_same_gpus(there, simulation, policy, lambda one: one[0].model.highest)
    return Critics(tuple(critic for critic, _ in found), tuple(rows for _, rows in found))


def _in_the_policys_process(model: Policy, scenario: Scenario) -> Policy:
    has_groups = scenario.mesh.dp_replicate > 1 and scenario.mesh.dp_shard * scenario.mesh.cp > 1
    fixed = {name: size for name, size in model.fixed.items() if name == _MAIN}
    return replace(model, fixed=fixed, outside={name: size for name, size in model.outside.items()
                                                if has_groups and name not in _SHARED})


def merged(rows: Iterable[TrafficRow]) -> Iterator[TrafficRow]:
    """One row for each collective, axis and format of a phase: those of forward, backward and the step together."""
    alike: dict[tuple[str, str, str], list[TrafficRow]] = {}
    for row in rows:
        alike.setdefault((row.collective, row.axis, row.dtype), []).append(row)
    for found in alike.values():
        sums: Counter[str] = Counter()
        for row in found:
            sums.update({name: getattr(row, name) for name in _SUMMED})
        timing = "measured" if all(row.timing == "measured" for row in found) else "model"
        yield found[0].model_copy(update={**sums, "timing": timing})


_SUMMED: Final = ("calls", "payload_bytes", "wire_bytes", "nvlink_bytes", "network_bytes")


# ---- phases ----------------------------------------------------------------------------------------------------------
def add_critic(journal: Journal, critic: Critic) -> None:
    """Adds the critic as the previous step left it."""
    journal.put(CRITIC, {**outside(critic.model.outside), **critic.model.fixed})
    journal.put(CRITIC, critic.model.params, "host" if critic.offloads_params else "device")
    journal.put(CRITIC, critic.model.states, "host" if critic.offloads_states else "device")


def make_values(journal: Journal, critic: Critic, topology: Topology) -> None:
    """Adds the phase in which the critic makes values."""
    journal.begin("values")
    if critic.offloads_params:
        back(journal, critic.model.params, topology, CRITIC)
    journal.spike(CRITIC, critic.model.passing, "forward pass", {FORWARD: critic.model.passing_ns})
    if critic.offloads_params:
        away(journal, critic.model.params, topology, CRITIC)


def train_critic(journal: Journal, critic: Critic, topology: Topology, times: int = 1) -> None:
    """Adds the phase in which the critic is trained, `times` times with its copies from the host and back."""
    journal.begin("critic")
    moving = [sizes for offloads, sizes in ((critic.offloads_params, critic.model.params),
                                            (critic.offloads_states, critic.model.states)) if offloads]
    for time in range(times):
        for sizes in moving:
            back(journal, sizes, topology, CRITIC)
        if not time:
            journal.spike(CRITIC, critic.model.training, "training step", {STEPS: critic.model.training_ns})
        for sizes in moving:
            away(journal, sizes, topology, CRITIC)
