"""Parts of a policy that move, for the trainer's two kinds of workers."""

from __future__ import annotations

from typing import Any

import pytest

from rl.step.test_forward import parts
from simcore.rl.step.forward import passes
from simcore.rl.step.policy import Policy, policy_of
from simcore.simulate import simulate


def policy(framework: str, **training: Any) -> Policy:
    made = parts(framework, **training)
    report, found = simulate(made.job.scenario), passes(made)
    return policy_of(report.ranks[0], made.plans[0], found.rest[0], found.above[0], made, (1, 2))


@pytest.mark.parametrize("framework", ["fsdp2", "automodel", "megatron"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_all_that_is_held_moves_or_stays(framework: str, method: str) -> None:
    rank_policy = policy(framework, method=method)
    assert sum(rank_policy.copied.values()) > 0
    moving = sum(rank_policy.params.values()) + sum(rank_policy.states.values())
    weights = sum(rank_policy.copied.values()) + rank_policy.fixed.get("workspace", 0)
    assert moving + sum(rank_policy.fixed.values()) >= weights
    assert all(size > 0 for size in (*rank_policy.params.values(), *rank_policy.states.values(),
                                     *rank_policy.fixed.values()))


def test_a_module_moves_whole_and_a_buffer_as_far_as_it_learns() -> None:
    whole, buffers = policy("fsdp2", method="lora"), policy("megatron", method="lora")
    assert whole.params == whole.copied
    assert whole.fixed == {}
    assert 0 < sum(buffers.params.values()) < sum(buffers.copied.values()) / 2
    assert buffers.fixed["sharded_param"] + buffers.params["sharded_param"] == buffers.copied["sharded_param"]


def test_masters_move_where_they_are_states_of_the_optimizer() -> None:
    made = {}
    for precise in (False, True):
        job = parts("megatron", framework_options={"use_precision_aware_optimizer": precise})
        report, found = simulate(job.job.scenario), passes(job)
        made[precise] = policy_of(report.ranks[0], job.plans[0], found.rest[0], found.above[0], job, (1, 2))
    assert made[False].fixed.get("main_param", 0) > 0
    assert "main_param" not in made[True].fixed
    assert "opt_state" in made[False].states


def test_training_takes_what_its_own_peak_says() -> None:
    scenario = parts("fsdp2").job.scenario
    peak = simulate(scenario).ranks[0].peak
    rank_policy = policy("fsdp2")
    assert peak is not None
    together = (rank_policy.params, rank_policy.states, rank_policy.fixed, rank_policy.outside, rank_policy.training)
    assert sum(sum(sizes.values()) for sizes in together) == pytest.approx(peak.device_bytes, rel=1e-3)
