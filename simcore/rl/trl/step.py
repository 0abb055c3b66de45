"""Phases of a step of TRL's GRPO on one class of ranks: the policy stays, and what else comes and goes.

[Note: TRL's step]
TRL 1.16.0 `trainer/grpo_trainer.py` _generate_single_turn, _generate_and_score_completions; `generation/
vllm_generation.py`. Before a generation that follows an optimizer step weights are sent to vLLM (sync_weights): with
`vllm_enable_sleep_mode` its weights wake for it, its cache wakes to generate, and both are dropped after it (level 2);
otherwise both stay in all phases. vLLM runs in the process that trains (external_launcher), whose context it shares.
Then the policy scores what was generated, if its log-probabilities are kept, then the reference model does; functions
give rewards, which take no memory. Microbatches train behind it. Where several generations belong to one optimizer
step, all but the first are beside gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.hardware.topology import Topology
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import (
    BROADCAST,
    DECODING,
    ENGINE,
    FORWARD,
    GATHERS,
    PACKING,
    POLICY,
    REFERENCE,
    REFIT,
    STEPS,
    outside,
    put_asleep,
    put_to_sleep,
    serving_journal,
    wake,
)
from simcore.rl.step.refit import Gathered
from simcore.rl.trl.policy import Generating, Held
from simcore.rl.trl.reference import Reference
from simcore.rl.trl.sync import sent_buffers
from simcore.vllm.protocol import InferenceEngine

_NOTHING: Final = Gathered(0, 0, 0, (), 0)
__all__ = ["Turn", "server_step", "trl_step"]

_GRADS: Final = f"{POLICY}, gradients"


@dataclass(frozen=True, slots=True)
class Turn:
    """Part of a step besides its passes: `cycles` generations of `generate_ns` each.

    `engine`: vLLM, None for a policy that generates by itself (`own`). `weights`: that vLLM is sent; `moved_ns`: in
    which they cross device memory; `broadcast_ns`: over links to a server, which is sent packed weights where `packs`.
    `scores`: the policy makes log-probabilities of its own.
    """

    cycles: int
    generate_ns: int
    scores: bool
    engine: InferenceEngine | None = None
    own: Generating | None = None
    weights: Gathered = _NOTHING
    moved_ns: int = 0
    broadcast_ns: int = 0
    packs: bool = True

    @property
    def shares(self) -> bool:
        """True if an engine is on the policy's GPU."""
        return self.engine is not None and self.engine.generation.colocated


def trl_step(held: Held, reference: Reference | None, turn: Turn, topology: Topology) -> Journal:
    """Memory and time of a steady step on one class of ranks that train, see [Note: TRL's step]."""
    journal = Journal()
    journal.put(POLICY, {**outside(held.outside), **held.rest})
    if reference is not None:
        journal.put(REFERENCE, reference.rest)
    if turn.shares and turn.engine is not None:
        _put_asleep(journal, turn.engine)
    if turn.cycles > 1:
        journal.put(_GRADS, {"sharded_grad": held.grads})
    if turn.engine is not None:
        _sync(journal, turn, turn.engine, topology)
    journal.begin("generation")
    _generate(journal, turn, topology)
    if turn.scores:
        journal.begin("logprob")
        journal.spike(POLICY, held.passing, "forward pass", {FORWARD: held.passing_ns})
    if reference is not None and not reference.within:
        journal.begin("reference")
        journal.spike(REFERENCE, reference.passing, "forward pass", {FORWARD: held.passing_ns})
    journal.drop(_GRADS, "device")
    journal.begin("training")
    journal.spike(POLICY, held.training, "training step", {STEPS: held.training_ns})
    if reference is not None and reference.syncing:
        journal.spike(REFERENCE, reference.syncing, "reference is synced")
    return journal


def _put_asleep(journal: Journal, engine: InferenceEngine) -> None:
    """Adds vLLM as the step before left it, in a process whose context is there."""
    put_asleep(journal, engine)
    for key in [key for key in journal.held if key[1] == ENGINE and key[2].endswith("context")]:
        del journal.held[key]


def _sync(journal: Journal, turn: Turn, engine: InferenceEngine, topology: Topology) -> None:
    journal.begin("refit")
    if turn.shares:
        wake(journal, engine, topology)
    sizes: Mapping[str, int] = {"all_gather_output": turn.weights.transient}
    if not turn.shares:
        sizes = {**sizes, **sent_buffers(turn.weights, packs=turn.packs, sends=True)}
    journal.spike(REFIT, sizes, "weights are synced",
                  {GATHERS: turn.weights.ns, PACKING: turn.moved_ns, BROADCAST: turn.broadcast_ns})


def _generate(journal: Journal, turn: Turn, topology: Topology) -> None:
    ns = turn.cycles * turn.generate_ns
    if turn.own is not None:
        journal.spike(POLICY, turn.own.above, "last token", {DECODING: ns})
    elif turn.shares and turn.engine is not None:
        if turn.engine.generation.sleep_level:
            journal.put(ENGINE, turn.engine.cached, event="cache wakes")
        journal.spike(ENGINE, {"activation": turn.engine.profile.highest}, "prefill of the most tokens")
        journal.take(DECODING, ns)
        put_to_sleep(journal, turn.engine, topology)
    else:
        journal.take(DECODING, ns)


def server_step(turn: Turn, engine: InferenceEngine, waiting: Mapping[str, int]) -> Journal:
    """Memory and time of a step on a GPU of a server, with the phases of those that train.

    `waiting`: duration in ns of each phase on the GPUs that train, by name, in their order.
    """
    return serving_journal(engine, waiting, sent_buffers(turn.weights, packs=turn.packs, sends=False))
