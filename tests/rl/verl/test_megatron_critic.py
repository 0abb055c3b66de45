"""The critic of verl's PPO over Megatron: who is where in each phase, and when it comes."""

from __future__ import annotations

from dataclasses import replace

from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from rl.verl.test_megatron import CORE, simulated
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import CRITIC
from simcore.rl.step.policy import Critic
from simcore.rl.verl.megatron import Moves, megatron_step
from simcore.rl.verl.megatron_critic import critic_bytes
from simcore.rl.verl.streams import Shared
from vllm.test_engine import H100

MODEL = replace(POLICY_OF, params={"sharded_param": 2 * GIB}, states={"opt_state": 4 * GIB},
                fixed={"main_param": 3 * GIB}, grads={"main_grad": 6 * GIB}, outside={}, passing={"activation": GIB},
                training={"main_grad": 6 * GIB, "activation": 5 * GIB}, passing_ns=7, training_ns=11)
GRADS = f"{CRITIC}, gradients"
PHASES = ("refit", "generation", "logprob", "values", "critic", "training")


def step(*, params: bool, states: bool, model: object = MODEL) -> Journal:
    made = replace(turn(sleep_level=2), critic=Critic(model, params, states), has_reference=False)  # type: ignore[arg-type]
    return megatron_step(CORE, made, H100, Moves(params, states, Shared(2 * GIB), refers_on_device=False))


def at(journal: Journal, *owners: str, space: str = "device") -> list[int]:
    return [sum(owned(journal, phase, who, space) for who in owners) // GIB for phase in PHASES]


def test_it_makes_values_after_log_probabilities_and_trains_before_the_actor() -> None:
    """verl b178a3cd trainer/ppo/ray_trainer.py fit."""
    for params in (False, True):
        assert tuple(one.phase for one in step(params=params, states=params).phases) == PHASES


def test_what_stays_stays_in_all_phases_and_what_leaves_comes_for_its_own() -> None:
    """Parameters 2, moments 4, main parameters 3, gradients 6; a pass makes 1, a step 5 beside its gradients."""
    stays = step(params=False, states=False)
    assert at(stays, CRITIC) == [9, 9, 9, 9 + 1, 9 + 6 + 5, 9]
    assert at(stays, GRADS) == [6, 6, 6, 6, 0, 6]
    leaves = step(params=True, states=True)
    assert at(leaves, CRITIC) == [0, 0, 0, 2 + 1, 9 + 6 + 5, 0]
    assert at(leaves, GRADS) == [0] * 6
    assert at(leaves, CRITIC, space="host")[:3] == [9, 9, 9]
    precise = replace(MODEL, fixed={}, states={"opt_state": 4 * GIB, "main_param": 3 * GIB})
    assert at(step(params=True, states=True, model=precise), CRITIC)[:3] == [3, 3, 3], "the optimizer keeps them"


def test_an_engine_starts_beside_what_init_model_has_made() -> None:
    found = [critic_bytes(Critic(MODEL, params, states)) // GIB
             for params, states in ((False, False), (True, False), (True, True))]
    assert found == [2 + 6 + 3, 3, 0]


def test_a_step_end_to_end_counts_every_byte() -> None:
    given = {"critic": {"model": "llama-3.2-1b", "micro_batch_size": 2, "values_batch_size": 2}}
    result = simulated(rl=given)
    assert result.status == "ok", result.problems
    for phase in result.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    assert {phase.by_owner[CRITIC] > 0 for phase in result.phases} == {True}
    assert "rl.critic" in [row.what for row in result.assumptions]
    away = simulated(rl={"critic": given["critic"] | {"param_offload": True, "optimizer_offload": True}})
    least = min(phase.by_owner.get(CRITIC, 0) for phase in away.phases)
    assert least < min(phase.by_owner[CRITIC] for phase in result.phases)
