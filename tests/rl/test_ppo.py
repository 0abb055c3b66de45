"""PPO as NeMo RL runs it: a policy and a critic that take turns on the same GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.rl.ppo import ppo_step
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import CRITIC, POLICY
from simcore.rl.step.policy import Critic, Policy
from simcore.simulate import check, simulate
from vllm.test_engine import H100

VALUES: Final = Critic(
    Policy({"sharded_param": 2 * GIB}, {"opt_state": 4 * GIB}, {"workspace": GIB}, {}, {"context": GIB},
           {"activation": GIB}, {"activation": 7 * GIB}, 300, 900), offloads_params=True, offloads_states=True)
BASE: Final[dict[str, Any]] = {
    "name": "p", "workload": "grpo", "model": "qwen2.5-1.5b", "framework": "megatron", "topology": "dgx-h100",
    "mesh": {"dp_shard": 2, "tp": 2, "cp": 2}, "training": {"seq_len": 512, "global_batch_size": 16},
    "rl": {"prompts": 32, "generations": 1, "critic": {"mesh": {"tp": 2, "dp_shard": 4}, "sequence_parallel": True}},
    "generation": {"max_model_len": 512}}


def step(epochs: int = 1, **given: Any) -> Journal:
    return ppo_step(POLICY_OF, replace(turn(**given), critic=VALUES), H100, epochs)


def copied(journal: Journal, phase: str) -> int:
    moment = next(one for one in journal.phases if one.phase == phase)
    return sum(one.num_bytes for one in moment.copied.values())


def test_one_model_is_on_the_device_while_the_other_computes() -> None:
    journal = step()
    assert [phase.phase for phase in journal.phases] == ["refit", "generation", "values", "logprob", "reference",
                                                         "critic", "training"]
    stays = {"values": GIB, "critic": GIB, "generation": GIB}  # the policy's context
    assert {name: owned(journal, name, POLICY) for name in stays} == stays
    assert {owned(journal, name, CRITIC) for name in ("refit", "generation", "logprob", "reference", "training")} == {
        2 * GIB}  # context and workspace
    assert owned(journal, "values", CRITIC) == (2 + 2 + 1) * GIB
    assert owned(journal, "critic", CRITIC) == (2 + 2 + 4 + 7) * GIB
    assert owned(journal, "critic", CRITIC, "host") == owned(journal, "training", CRITIC, "host") == 6 * GIB
    assert owned(journal, "training", POLICY) == (1 + 3 + 6 + 20) * GIB


def test_with_engines_apart_all_of_the_policy_leaves_after_its_weights_were_sent() -> None:
    journal = step(colocated=False, has_reference=False)
    assert owned(journal, "generation", POLICY) == GIB
    assert owned(journal, "generation", POLICY, "host") == 9 * GIB
    assert copied(journal, "refit") == 9 * GIB


def test_models_come_and_go_in_each_round_and_the_policy_stays_after_the_last() -> None:
    one, four = step(), step(4)
    assert copied(four, "critic") == 4 * copied(one, "critic") == 4 * 2 * 6 * GIB
    assert copied(four, "training") == copied(one, "training") + 3 * 2 * 9 * GIB
    assert four.phases[-1].bytes_on("device") == one.phases[-1].bytes_on("device")


def report(**changed: Any) -> Report:
    return simulate(parse_scenario(parse_document(json.dumps(BASE | changed), "p.json")), timed=False)


def test_a_critic_has_degrees_and_processes_of_its_own() -> None:
    """Its training step is that of a scenario alone; the policy's is that of GRPO, as often as there are rounds."""
    found = report()
    assert found.status == "ok", found.problems
    alone = simulate(parse_scenario(parse_document(json.dumps({
        "name": "v", "model": "qwen2.5-1.5b", "framework": "megatron", "topology": "dgx-h100",
        "mesh": {"tp": 2, "dp_shard": 4}, "training": {"seq_len": 512, "global_batch_size": 16, "loss": "values",
                                                       "sequence_parallel": True}}), "v.json")), timed=False)
    assert alone.ranks[0].peak is not None
    critic = next(phase for phase in found.phases if phase.phase == "critic")
    assert critic.by_owner["critic"] == alone.ranks[0].peak.device_bytes
    rows = [row for row in found.ranks[0].traffic if row.phase in ("values", "critic") and row.axis == "tp"]
    assert rows
    assert not any(row.axis == "cp" for row in found.ranks[0].traffic if row.phase in ("values", "critic"))
    twice = report(rl=BASE["rl"] | {"epochs": 2})
    calls = [{row.phase: row.calls for row in one.ranks[0].traffic if row.collective == "reduce_scatter"}
             for one in (found, twice)]
    assert calls[1]["backward"] == 2 * calls[0]["backward"]
    assert calls[1]["critic"] == 2 * calls[0]["critic"]


@pytest.mark.parametrize(("changed", "told"), [
    ({"rl": BASE["rl"] | {"critic": {"mesh": {"dp_shard": 4}}}}, "critic: mesh: expected the 8 ranks of the policy"),
    ({"rl": BASE["rl"] | {"critic": {"param_offload": True}}}, "critic: param_offload changes nothing"),
    ({"rl": BASE["rl"] | {"critic": {"global_batch_size": 12}}}, "critic: global_batch_size: expected a divisor"),
    ({"rl": {"prompts": 32, "generations": 1, "epochs": 2}}, "epochs: 2 without a critic"),
    ({"model": "nemotron-3-tiny", "mesh": {"dp_shard": 8}, "rl": BASE["rl"] | {"critic": {}}},
     "critic: not yet: a value head of nemotron_h"),
    ({"framework": "automodel", "framework_version": "NeMo RL 7ea279ab", "implementation": "hf",
      "mesh": {"dp_shard": 8},
      "rl": BASE["rl"] | {"critic": {"mesh": {"tp": 2, "dp_shard": 4}, "sequence_parallel": False}}},
     "critic: not yet: a head of values with tp"),
    ({"workload": "distillation", "teacher": {"model": "qwen2.5-1.5b", "mesh": {"dp_shard": 8}}},
     "critic: not in distillation"),
])
def test_what_a_critic_cannot_be_is_refused(changed: dict[str, Any], told: str) -> None:
    scenario = parse_scenario(parse_document(json.dumps(BASE | changed), "p.json"))
    for found in (check(scenario), simulate(scenario, timed=False)):
        assert told in " ".join(problem.message for problem in found.problems), found.status
