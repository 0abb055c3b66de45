"""The reward model of verl's loop: an engine of its own on the policy's GPUs, which scores what was generated.

[Note: verl's reward model]
verl b178a3cd `experimental/reward_loop/reward_model.py` RewardModelManager: engines of vLLM on the same GPUs, as many
as fit beside each other, in processes of their own. `reward_loop.py` compute_rm_score wakes them behind generation,
sends each sequence as a request to classify, and has them sleep again, at level 1 (`workers/rollout/vllm_rollout/
vllm_async_server.py:571`): weights go to the host, the cache is freed. The head has one column, which is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import ModelFile, Scenario
from simcore.placement.job import topology_of
from simcore.results.report import Assumption
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import REWARD, SCORING, put_asleep, put_to_sleep, wake
from simcore.rl.step.policy import Scorer
from simcore.rl.step.traffic import ENGINE_AXIS, Sent
from simcore.vllm.parallel import prompt_calls
from simcore.vllm.prefill import prompt_seconds
from simcore.vllm.workload import engine_of

__all__ = ["add_scorer", "score_sequences", "scorer_of", "sent_by_scorer", "told_of_scorer"]

_SLEEP: int = 1


def scorer_of(scenario: Scenario, sequences: int) -> Scorer | None:
    """Reward model of a step with `sequences` sequences; None without one.

    Raises InputError, IllegalLayout and NotYet as the engine refuses, at the block `rl.reward`.
    """
    asked = scenario.rl.reward if scenario.rl is not None else None
    if asked is None:
        return None
    where = scenario.where("rl", "reward")
    if scenario.world_size % asked.tp:
        raise InputError(Problem(where, f"reward: tp: expected a divisor of {scenario.world_size} ranks, got "
                                        f"{asked.tp}"))
    length = scenario.training.seq_len
    given = Generation(tp=asked.tp, gpu_memory_utilization=asked.gpu_memory_utilization, max_model_len=length,
                       max_num_seqs=asked.max_num_seqs, max_num_batched_tokens=asked.max_num_batched_tokens,
                       enforce_eager=asked.enforce_eager, sleep_level=_SLEEP, prefix_caching=True)
    model = ModelFile(config=asked.model, overrides={"tie_word_embeddings": True})  # no output projection
    try:
        engine = engine_of(scenario.model_copy(update={"model": model, "generation": given}), given,
                           topology_of(scenario), "server")
    except (InputError, IllegalLayout, NotYet) as error:
        raise type(error)([replace(one, where=where, message=f"reward: {one.message}") for one in error.problems]
                          ) from None
    share = -(-sequences * asked.tp // scenario.world_size)
    return Scorer(engine, share, round(1e9 * prompt_seconds(engine, share, length)))


def add_scorer(journal: Journal, scorer: Scorer) -> None:
    """Adds the reward model as the previous step left it: asleep."""
    put_asleep(journal, scorer.engine, REWARD)


def score_sequences(journal: Journal, scorer: Scorer, topology: Topology) -> None:
    """Adds the phase in which the reward model wakes, scores and sleeps again."""
    journal.begin("reward")
    wake(journal, scorer.engine, topology, REWARD)
    journal.put(REWARD, scorer.engine.cached, event="cache wakes")
    journal.spike(REWARD, {"activation": scorer.engine.profile.highest}, "prefill of the most tokens",
                  {SCORING: scorer.ns})
    put_to_sleep(journal, scorer.engine, topology, REWARD)


def sent_by_scorer(scorer: Scorer | None, length: int, ranks: int) -> Iterator[Sent]:
    """Collectives of the reward model's ranks, which are neighbours among `ranks`; none on one rank."""
    if scorer is None:
        return
    engine = scorer.engine
    link = engine.topology.link(engine.tp, 1, ranks)
    for call in prompt_calls(engine, scorer.sequences, length):
        yield Sent(call.collective, ENGINE_AXIS, engine.tp, link, "reward", call.dtype, call.num_bytes, call.num_calls)


def told_of_scorer(scorer: Scorer | None) -> Iterator[Assumption]:
    """Assumptions on the time and the memory of a reward model."""
    if scorer is not None:
        yield Assumption(what="rl.reward", value="every sequence is scored at full length; arithmetic alone takes "
                         "time, and memory of a sampler is kept free, which a classifier has not", kind="assumed",
                         source="verl b178a3cd experimental/reward_loop/reward_loop.py compute_rm_score")
