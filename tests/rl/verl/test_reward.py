"""The reward model of verl's loop: when it is where, what it costs, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from rl.verl.test_step import STATE, asked
from simcore.rl.step.phases import REWARD
from simcore.rl.step.policy import Scorer
from simcore.rl.verl.step import Offloads, verl_step
from simcore.rl.verl.streams import Shared
from simcore.simulate import check, simulate
from simcore.vllm.engine import Limits
from simcore.vllm.parallel import prompt_calls
from simcore.vllm.prefill import prompt_flops, prompt_seconds
from vllm.test_engine import H100, engine

REWARDS: dict[str, Any] = {"model": "llama-3.2-1b", "gpu_memory_utilization": 0.3}


def test_a_reward_model_wakes_behind_generation_and_sleeps_again() -> None:
    made = engine(2048, gpu_memory_utilization=0.5, sleep_level=1)
    settings = Offloads(params=False, optimizer=False, stream=Shared(2 * GIB), passes=4), STATE
    journal = verl_step(POLICY_OF, replace(turn(sleep_level=2), scorer=Scorer(made, 8, 700)), H100, settings)
    assert [phase.phase for phase in journal.phases] == [
        "refit", "generation", "reward", "logprob", "reference", "training"]
    stays = made.graph_bytes + made.workspace_bytes + sum(made.outside().values())
    assert {owned(journal, name, REWARD) for name in ("refit", "generation", "training")} == {stays}
    assert owned(journal, "reward", REWARD) == (
        stays + made.weight_bytes + made.cache.num_bytes + made.profile.highest)
    assert {owned(journal, phase.phase, REWARD, "host") for phase in journal.phases} == {made.weight_bytes}
    moment = journal.phases[2]
    assert moment.parts["scoring"] == 700
    assert {way: copied.num_bytes for way, copied in moment.copied.items()} == {
        "to_device": made.weight_bytes, "to_host": made.weight_bytes}


def test_prompts_take_two_flops_a_weight_and_four_a_pair_and_element() -> None:
    """Nemotron-3-Nano's tokens go to 6 of 128 experts; the head and the embedding multiply nothing."""
    made = engine(2048, tp=1, gpu_memory_utilization=0.9)
    dense = sum(weight.numel for weight in made.weights if not weight.routed
                and weight.component not in ("embedding", "lm_head"))
    routed = sum(weight.numel for weight in made.weights if weight.routed) * 6 // 128
    pairs = [prompt_flops(made, 1, tokens) - 2 * (dense + routed) * tokens for tokens in (1, 3)]
    assert pairs[1] == pytest.approx(6 * pairs[0])
    assert prompt_flops(made, 5, 3) == 5 * prompt_flops(made, 1, 3)
    assert prompt_seconds(made, 1, 3) > prompt_flops(made, 1, 3) / H100.device.products.si


def test_prompts_pass_in_parts_without_logits() -> None:
    made = replace(engine(2048, tp=4), limits=Limits(1000, 256))
    found = prompt_calls(made, 3, 700)
    assert {call.collective for call in found} == {"all_reduce"}
    assert sorted({(call.num_calls, call.num_bytes // (2 * made.architecture.hidden)) for call in found
                   if call.dtype == "bf16"}) == [(1, 100), (2, 1000)]
    assert prompt_calls(engine(2048, tp=1), 3, 700) == []


def test_a_step_with_a_reward_model_counts_every_byte() -> None:
    plain, scored = simulate(asked()), simulate(asked(rl__reward=REWARDS | {"tp": 2}))
    assert scored.status == "ok", scored.problems
    of = {phase.phase: phase for phase in scored.phases}
    for phase in scored.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    usable = H100.device.usable_bytes
    assert 0.3 * usable < of["reward"].by_owner["reward model"] < 0.34 * usable
    assert scored.time is not None
    assert plain.time is not None
    assert scored.time.parts["reward"] == pytest.approx(of["reward"].parts["scoring"])
    more = scored.time.parts["reward"] + scored.time.parts["host copies"] - plain.time.parts["host copies"]
    assert scored.time.step_s - plain.time.step_s == pytest.approx(more)
    sent = [row for row in scored.ranks[0].traffic if row.phase == "reward" and row.collective == "all_reduce"]
    assert [row.group_size for row in sent] == [2]
    assert [row.what for row in scored.assumptions].count("rl.reward") == 1


def test_what_a_reward_model_cannot_be_is_refused_at_its_block() -> None:
    for told, reward in (("reward: tp: expected a divisor of 8 ranks, got 3", {"tp": 3}),
                         ("reward: unknown model 'nothing'", {"model": "nothing"}),
                         ("reward: ", {"tp": 8, "model": "qwen2.5-0.5b"})):
        scenario = asked(rl__reward=REWARDS | reward)
        assert any(told in str(one) for one in simulate(scenario).problems), told
        assert any(told in str(one) for one in check(scenario).problems), told
    report = simulate(asked(rl__trainer="nemo_rl", rl__reward=REWARDS, framework="fsdp2", training__loss="hf"))
    assert "reward: changes nothing with trainer: nemo_rl" in str(report.problems[0])
