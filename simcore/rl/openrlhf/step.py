"""Phases of a step of OpenRLHF's PPO on one class of ranks: which models are where, and which sleep.

[Note: OpenRLHF's step]
OpenRLHF 0.11.0 `trainer/ppo_trainer.py` fit, train_step, ppo_train, broadcast_to_vllm, `trainer/ppo_utils/
experience_maker.py` make_experience. vLLM generates; with `vllm.enable_sleep` its cache wakes for it, and cache and
weights leave behind it (level 1). The reward model scores, the policy makes log-probabilities, the critic values, the
reference model its own log-probabilities, one after the other on shared GPUs, each of which gives its cached memory
back (empty_cache). With `ds.enable_sleep` the critic is trained, then the policy; states come for each and leave behind
it. Without it both train at once. Then vLLM's weights wake alone, and are sent what was trained (`sync.py`); its cache
stays away until tokens are generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.hardware.topology import Topology
from simcore.rl.openrlhf.models import Model
from simcore.rl.openrlhf.sync import Sync
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import (
    BROADCAST,
    CRITIC,
    DECODING,
    ENGINE,
    FORWARD,
    GATHERS,
    PACKING,
    POLICY,
    REFERENCE,
    REFIT,
    REWARD,
    STEPS,
    host_ns,
    outside,
    put_asleep,
    put_to_sleep,
    serving_journal,
    wake,
)
from simcore.vllm.protocol import InferenceEngine

__all__ = ["Team", "engine_journal", "openrlhf_step"]

_STATES: Final = "pinned states"
_AT_ONCE: Final = ", training"


@dataclass(frozen=True, slots=True)
class Team:
    """Models on a class of ranks; None for those that the step has not. `sleeps`: states of trained ones leave."""

    policy: Model
    reference: Model | None
    critic: Model | None
    reward: Model | None

    @property
    def sleeps(self) -> bool:
        """True if states of what is trained leave between trainings."""
        return self.policy.sleep is not None


def openrlhf_step(team: Team, engine: InferenceEngine, sync: Sync, generate_ns: int, topology: Topology) -> Journal:
    """Memory and time of a steady step on one class of ranks that train, see [Note: OpenRLHF's step]."""
    journal = Journal()
    for owner, model in _owned(team):
        journal.put(owner, {**outside(model.outside), **model.rest})
        _put_on_host(journal, owner, model)
        _leave(journal, owner, model)
    if engine.generation.colocated:
        _add_engine(journal, engine)
    journal.begin("generation")
    _generate(journal, engine, generate_ns, topology)
    for phase, owner, scorer in (("reward", REWARD, team.reward), ("logprob", POLICY, team.policy),
                                 ("values", CRITIC, team.critic), ("reference", REFERENCE, team.reference)):
        if scorer is not None:
            journal.begin(phase)
            _pass(journal, owner, scorer)
    _train(journal, team, topology)
    journal.begin("refit")
    _refit(journal, engine, sync, topology)
    return journal


def _owned(team: Team) -> list[tuple[str, Model]]:
    found = ((POLICY, team.policy), (REFERENCE, team.reference), (CRITIC, team.critic), (REWARD, team.reward))
    return [(owner, model) for owner, model in found if model is not None]


# ---- asleep and awake ------------------------------------------------------------------------------------------------
def _put_on_host(journal: Journal, owner: str, model: Model) -> None:
    journal.put(owner, {"opt_state": model.hosted}, "host")
    if model.sleep is not None:
        journal.put(f"{owner}, {_STATES}", {"opt_state": model.sleep.pinned}, "host")


def _leave(journal: Journal, owner: str, model: Model) -> int:
    """Takes what sleeps off the device; returns the bytes that are copied to the host."""
    sleep = model.sleep
    if sleep is None:
        return 0
    if sleep.pinned:
        journal.drop(owner, "device", sleep.moved)
    else:
        journal.move(owner, "device", "host", sleep.moved)
    journal.drop(owner, "device", {*sleep.dropped, *sleep.released})
    return sum(sleep.moved.values())


def _come(journal: Journal, owner: str, model: Model, topology: Topology) -> None:
    """Brings states back to the device, and makes the buckets of gradients."""
    sleep = model.sleep
    if sleep is None:
        return
    if sleep.pinned:
        journal.put(owner, sleep.moved, event="states come back")
    else:
        journal.move(owner, "host", "device", sleep.moved)
    journal.put(owner, sleep.dropped)
    size = sum(sleep.moved.values())
    journal.copy("to_device", size, host_ns(size, topology, "to_device"))


def _go(journal: Journal, owner: str, model: Model, topology: Topology) -> None:
    size = _leave(journal, owner, model)
    journal.copy("to_host", size, host_ns(size, topology, "to_host"))


def _pass(journal: Journal, owner: str, model: Model) -> None:
    """Adds passes; small parameters that sleep has released are gathered for them, and stay."""
    if model.sleep is not None:
        journal.put(owner, model.sleep.released)
    journal.spike(owner, model.passing, "forward pass", {FORWARD: model.passing_ns})


# ---- phases ----------------------------------------------------------------------------------------------------------
def _train(journal: Journal, team: Team, topology: Topology) -> None:
    """Adds training, of the critic first; of models that train at once each is beside the other's highest moment."""
    turns = [("training", POLICY, team.policy)]
    if team.critic is not None:
        turns.insert(0, ("critic", CRITIC, team.critic))
    for phase, owner, model in turns:
        journal.begin(phase)
        for _, other, busy in turns if not team.sleeps else ():
            if other != owner:
                journal.put(f"{other}{_AT_ONCE}", busy.training, event="both train")
        _come(journal, owner, model, topology)
        journal.spike(owner, model.training, "training step", {STEPS: model.training_ns})
        _go(journal, owner, model, topology)
        for _, other, _ in turns:
            journal.drop(f"{other}{_AT_ONCE}", "device")


def _add_engine(journal: Journal, engine: InferenceEngine) -> None:
    """Adds vLLM as the sync of the step before left it: its weights awake, its cache away if it sleeps."""
    put_asleep(journal, engine)
    if engine.generation.sleep_level:
        journal.move(ENGINE, "host", "device", engine.loaded)


def _generate(journal: Journal, engine: InferenceEngine, ns: int, topology: Topology) -> None:
    if not engine.generation.colocated:
        journal.take(DECODING, ns)
        return
    if engine.generation.sleep_level:
        journal.put(ENGINE, engine.cached, event="cache wakes")
    journal.spike(ENGINE, {"activation": engine.profile.highest}, "prefill of the most tokens")
    journal.take(DECODING, ns)
    put_to_sleep(journal, engine, topology)


def _refit(journal: Journal, engine: InferenceEngine, sync: Sync, topology: Topology) -> None:
    if engine.generation.colocated:
        wake(journal, engine, topology)
    sizes = {"all_gather_output": sync.weights.transient, "buffer": sync.clone}
    journal.spike(REFIT, {name: size for name, size in sizes.items() if size}, "weights are sent",
                  {GATHERS: sync.weights.ns, PACKING: sync.moved_ns, BROADCAST: sync.broadcast_ns})


def engine_journal(engine: InferenceEngine, sync: Sync, waiting: Mapping[str, int]) -> Journal:
    """Memory and time of a step on a GPU that only generates, with the phases of those that train.

    `waiting`: duration in ns of each phase on the GPUs that train, by name, in their order.
    """
    return serving_journal(engine, waiting, {"buffer": sync.weights.largest})
