"""The order of a step: who is where in each phase, at each sleep level, on shared GPUs and on GPUs of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import ENGINE, FIXED, POLICY, REFERENCE, GrpoStep, dpo_step, engine_step, grpo_step
from simcore.rl.step.policy import Policy
from simcore.rl.step.refit import Gathered
from vllm.test_engine import H100, engine

GIB = 2**30
POLICY_OF = Policy({"sharded_param": 3 * GIB}, {"opt_state": 6 * GIB}, {}, {"sharded_param": 3 * GIB}, {"context": GIB},
                   {"activation": 2 * GIB}, {"activation": 20 * GIB}, 1000, 5000)


def turn(*, has_reference: bool = True, **given: Any) -> GrpoStep:
    weights = Gathered(GIB, GIB, 60 * GIB, (), 100)
    return GrpoStep(engine(2048, gpu_memory_utilization=0.7, **given), weights, has_reference, 7000, 0.3)


def step(**given: Any) -> Journal:
    return grpo_step(POLICY_OF, turn(**given), H100)


def owned(journal: Journal, phase: str, owner: str, space: str = "device") -> int:
    moment = next(one for one in journal.phases if one.phase == phase)
    held = moment.device if space == "device" else moment.host
    return sum(size for (who, _), size in held.items() if who == owner)


def test_phases_follow_each_other_in_the_trainers_order() -> None:
    assert [phase.phase for phase in step().phases] == ["refit", "generation", "logprob", "reference", "training"]
    assert [phase.phase for phase in step(has_reference=False).phases] == ["refit", "generation", "logprob", "training"]
    assert [phase.phase for phase in dpo_step(POLICY_OF, H100).phases] == ["reference", "training"]


def test_nothing_but_its_context_is_left_of_the_policy_while_tokens_are_generated() -> None:
    journal = step()
    assert owned(journal, "generation", POLICY) == GIB
    assert owned(journal, "generation", POLICY, "host") == 9 * GIB
    assert owned(journal, "generation", ENGINE) > 0.7 * H100.device.usable_bytes - 2 * GIB


def test_what_is_fixed_never_leaves() -> None:
    fixed = replace(POLICY_OF, fixed={"sharded_param": 4 * GIB}, copied={"sharded_param": 7 * GIB})
    journal = grpo_step(fixed, turn(), H100)
    assert {owned(journal, phase.phase, FIXED) for phase in journal.phases} == {4 * GIB}
    assert owned(journal, "generation", REFERENCE, "host") == 7 * GIB


def test_an_engine_asleep_keeps_what_it_cannot_drop() -> None:
    made = turn().engine
    stays = made.graph_bytes + made.workspace_bytes + sum(made.outside().values())
    assert owned(step(), "training", ENGINE) == stays
    assert owned(step(), "training", ENGINE, "host") == made.weight_bytes
    assert owned(step(sleep_level=2), "training", ENGINE, "host") == 0
    assert owned(step(sleep_level=0), "training", ENGINE) == stays + made.weight_bytes + made.cache.num_bytes


def test_optimizer_states_come_back_for_training_alone() -> None:
    journal = step()
    assert owned(journal, "logprob", POLICY) == (1 + 3 + 2) * GIB
    assert owned(journal, "training", POLICY) == (1 + 3 + 6 + 20) * GIB


def test_the_reference_waits_on_the_host_and_the_policy_while_it_speaks() -> None:
    journal = step()
    assert {owned(journal, phase.phase, REFERENCE, "host") for phase in journal.phases} == {3 * GIB}
    assert owned(journal, "reference", f"{POLICY}, copied", "host") == 3 * GIB
    assert owned(journal, "training", f"{POLICY}, copied", "host") == 0
    assert owned(journal, "reference", POLICY) == owned(journal, "logprob", POLICY)
    assert owned(step(has_reference=False), "training", REFERENCE, "host") == 0


def test_refit_takes_a_share_of_what_is_free_beside_both() -> None:
    made = turn().engine
    journal = grpo_step(Policy({"sharded_param": 30 * GIB}, {}, {}, {}, {}, {}, {}, 0, 0), turn(), H100)
    free = H100.device.usable_bytes - sum(made.outside().values()) - made.graph_bytes - made.workspace_bytes \
        - made.weight_bytes - 30 * GIB
    assert journal.phases[0].event == "weights are streamed"
    assert owned(journal, "refit", "refit") == pytest.approx(0.3 * free + GIB, abs=2048)


def test_dpo_leaves_the_optimizer_where_it_is() -> None:
    journal = dpo_step(POLICY_OF, H100)
    assert owned(journal, "reference", POLICY) == (1 + 3 + 6 + 2) * GIB
    assert owned(journal, "reference", REFERENCE, "host") == 3 * GIB


def test_on_gpus_of_their_own_nobody_moves() -> None:
    alone = turn(colocated=False)
    journal = grpo_step(POLICY_OF, alone, H100)
    assert owned(journal, "generation", POLICY) == (1 + 3 + 6) * GIB
    assert {owned(journal, phase.phase, ENGINE) for phase in journal.phases} == {0}
    beside = engine_step(alone, H100, {phase.phase: phase.ns for phase in journal.phases})
    least = min(phase.bytes_on("device") for phase in beside.phases)
    assert least >= alone.engine.weight_bytes + alone.engine.cache.num_bytes
    assert [phase.ns for phase in beside.phases] == [phase.ns for phase in journal.phases]


def test_parts_of_a_refit_add_up_to_it() -> None:
    sent = grpo_step(POLICY_OF, replace(turn(colocated=False), broadcast_ns=77), H100).phases[0]
    assert (sent.parts["gathers"], sent.parts["broadcast"]) == (100, 77)
    assert sent.ns == 177 + sent.parts["packing"]


def test_what_takes_time_is_in_its_phase() -> None:
    ns = {phase.phase: phase.ns for phase in step().phases}
    to_host, to_device = (getattr(H100.node.host_link, name).si for name in ("to_host", "to_device"))
    assert ns["generation"] == pytest.approx(7000 + turn().engine.weight_bytes / to_host * 1e9, rel=0.01)
    assert ns["training"] == pytest.approx(5000 + 6 * GIB / to_device * 1e9, rel=0.01)
    assert ns["reference"] == pytest.approx(1000 + 3 * GIB * (1 / to_host + 2 / to_device) * 1e9, rel=0.01)


def test_parts_of_a_step_are_scored_beside_gradients() -> None:
    """A single controller keeps what it has accumulated while the next part is scored."""
    policy = replace(POLICY_OF, all_grads=4 * GIB)
    whole, parts = (grpo_step(policy, replace(turn(colocated=False), chunks=chunks), H100) for chunks in (1, 3))
    assert [owned(parts, phase, POLICY) - owned(whole, phase, POLICY) for phase in (
        "refit", "logprob", "reference", "training")] == [0, 4 * GIB, 4 * GIB, 0]


def test_states_wait_on_the_host_while_log_probabilities_are_made() -> None:
    """With engines apart they stay on the device otherwise (NeMo RL's offload_optimizer_for_logprob)."""
    stays, leaves = (grpo_step(POLICY_OF, replace(turn(colocated=False), offloads_states=offloads), H100)
                     for offloads in (False, True))
    assert [owned(stays, phase, POLICY) - owned(leaves, phase, POLICY) for phase in (
        "generation", "reference", "training")] == [0, 6 * GIB, 0]
    highest = next(phase for phase in leaves.phases if phase.phase == "logprob")
    assert [one.num_bytes for one in highest.copied.values()] == [6 * GIB]
    assert owned(leaves, "reference", POLICY, "host") == 6 * GIB
    alone = grpo_step(POLICY_OF, replace(turn(colocated=False), offloads_states=True, scores_policy=False), H100)
    assert owned(alone, "reference", POLICY, "host") == 6 * GIB
