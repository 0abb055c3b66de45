"""Phases of a step of verl's workers over Megatron: what moves, and the reference policy beside the actor.

[Note: verl's step over Megatron]
verl b178a3cd `workers/megatron_workers.py` ActorRolloutRefWorker, `utils/megatron_utils.py`. Parameters and gradients
are those of Megatron's DDP buffers. With param_offload parameters are copied to pinned host memory, and gradients are
freed with them (`:371` offload_megatron_model_to_cpu, whatever grad_offload says); they come back for the refit and for
log-probabilities without gradients, for training with them. Without it parameters and gradients stay in all phases.
With optimizer_offload main parameters (`:435` offload_megatron_copy_params) and both moments go to the host after
training; main parameters that the precision-aware optimizer holds stay. A refit exports parameters by mbridge
(`mbridge.py`) into the engine (`streams.py`), whose weights are awake; then parameters go away, and the cache is
allocated. The reference policy is a module of its own, without DDP: on the device in all phases, or with
ref.megatron.param_offload on the host but for its passes; both ways are copied. Both policies' passes are those of one
policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.hardware.topology import Topology
from simcore.rl.step.critic import make_values
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import (
    ENGINE,
    FIXED,
    FORWARD,
    GATHERS,
    POLICY,
    REFERENCE,
    REFIT,
    GrpoStep,
    away,
    back,
    generate,
    packing_ns,
    put_asleep,
    score,
    start,
    train,
    wake,
)
from simcore.rl.step.policy import Policy
from simcore.rl.verl.megatron_critic import add_critic, train_critic
from simcore.rl.verl.streams import Stream

__all__ = ["Moves", "beside_engine", "megatron_step"]

_GRADS: Final = f"{POLICY}, gradients"
_MAIN: Final = "main_param"


@dataclass(frozen=True, slots=True)
class Moves:
    """Settings of verl's workers over Megatron: what is on the host where no pass needs it, how weights are sent.

    `refers_on_device`: the reference policy's parameters stay on the device.
    """

    params: bool
    optimizer: bool
    stream: Stream
    refers_on_device: bool


def beside_engine(policy: Policy, *, params: bool, optimizer: bool, refers_on_device: bool) -> int:
    """Bytes on the device when an engine starts, after `init_model`: moments are made by the first step."""
    fixed = {name: size for name, size in policy.fixed.items() if not (optimizer and name == _MAIN)}
    main = 0 if optimizer else policy.states.get(_MAIN, 0)
    moving = 0 if params else sum(policy.params.values()) + sum(policy.grads.values())
    return (sum(policy.outside.values()) + sum(fixed.values()) + main + moving
            + refers_on_device * sum(policy.copied.values()))


def megatron_step(policy: Policy, step: GrpoStep, topology: Topology, moves: Moves) -> Journal:
    """Memory and time of a steady step on one class of ranks, in the phases of `grpo_step`.

    With a critic also "values" and "critic". See [Note: verl's step over Megatron], and the critic's.
    """
    refers_on_host = step.has_reference and not moves.refers_on_device
    journal = start(policy, has_reference=refers_on_host)
    if step.has_reference and moves.refers_on_device:
        journal.put(REFERENCE, policy.copied)
    if moves.params:
        journal.move(POLICY, "device", "host", policy.params)
    else:
        journal.put(_GRADS, policy.grads)
    if moves.optimizer:
        _move_states(journal, policy)
    if step.critic is not None:
        add_critic(journal, step.critic)
    put_asleep(journal, step.engine)
    journal.begin("refit")
    _refit(journal, policy, step, topology, moves)
    journal.begin("generation")
    generate(journal, step, topology)
    journal.begin("logprob")
    _with_params(journal, policy, topology, moves)
    if step.has_reference:
        journal.begin("reference")
        _refer(journal, policy, topology, on_host=refers_on_host)
    if step.critic is not None:
        make_values(journal, step.critic, topology)
        train_critic(journal, step.critic, topology)
    journal.begin("training")
    _train(journal, policy, topology, moves)
    return journal


def _move_states(journal: Journal, policy: Policy) -> None:
    journal.move(POLICY, "device", "host", _moments(policy))
    journal.move(FIXED, "device", "host", [_MAIN])


def _moments(policy: Policy) -> Mapping[str, int]:
    """States that move: not the main parameters that the precision-aware optimizer holds among them."""
    return {name: size for name, size in policy.states.items() if name != _MAIN}


def _refit(journal: Journal, policy: Policy, step: GrpoStep, topology: Topology, moves: Moves) -> None:
    if moves.params:
        back(journal, policy.params, topology)
    wake(journal, step.engine, topology)
    sizes, moved = moves.stream(step.gathered)
    parts = {GATHERS: step.gathered.ns, **packing_ns(step, topology, moved)}
    journal.spike(REFIT, sizes, "weights are streamed", parts)
    if moves.params:
        away(journal, policy.params, topology)
    if step.engine.generation.sleep_level:
        journal.put(ENGINE, step.engine.cached, event="cache wakes")


def _with_params(journal: Journal, policy: Policy, topology: Topology, moves: Moves) -> None:
    if moves.params:
        back(journal, policy.params, topology)
    score(journal, policy)
    if moves.params:
        away(journal, policy.params, topology)


def _refer(journal: Journal, policy: Policy, topology: Topology, *, on_host: bool) -> None:
    if on_host:
        back(journal, policy.copied, topology, REFERENCE)
    journal.spike(REFERENCE, policy.passing, "forward pass", {FORWARD: policy.passing_ns})
    if on_host:
        away(journal, policy.copied, topology, REFERENCE)


def _train(journal: Journal, policy: Policy, topology: Topology, moves: Moves) -> None:
    if moves.params:
        back(journal, policy.params, topology)
    else:
        journal.drop(_GRADS, "device")  # they are among the training step's own
    if moves.optimizer:
        back(journal, _moments(policy), topology)
        back(journal, {_MAIN: 0}, topology, FIXED)
    train(journal, policy)
    if moves.params:
        away(journal, policy.params, topology)
    else:
        journal.put(_GRADS, policy.grads)
    if moves.optimizer:
        away(journal, _moments(policy), topology)
        away(journal, {_MAIN: 0}, topology, FIXED)
