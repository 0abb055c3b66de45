"""Recipes of PPO: the value model's block is the scenario's critic, with its own degrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from simcore.errors import InputError, NotYet
from simcore.inputs.generation import Critic
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

BASE: Final = """\
ppo: {num_prompts_per_step: 1024, num_generations_per_prompt: 1, ppo_epochs: 2, use_dynamic_sampling: false,
      skip_reference_policy_logprobs_calculation: true, async_ppo: {enabled: false}, adv_estimator: {name: gae}}
loss_fn: {reference_policy_kl_penalty: 0.0}
value_loss_fn: {scale: 0.4, cliprange: 0.2}
policy: &POLICY
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 256
  train_micro_batch_size: 4
  logprob_batch_size: 2
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {_v2: true, enabled: true, tensor_parallel_size: 1, context_parallel_size: 1}
  sequence_packing: {enabled: false}
  megatron_cfg: {enabled: false}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 1.0e-6}}
  generation:
    backend: vllm
    vllm_cfg: {tensor_parallel_size: 1, max_model_len: "${policy.max_total_sequence_length}"}
    colocated: {enabled: true}
value:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  train_micro_batch_size: 8
  max_total_sequence_length: 1024
  precision: bfloat16
  reward_model_cfg: {enabled: true, reward_model_type: regression}
  dtensor_cfg: {_v2: true, enabled: true, activation_checkpointing: true, tensor_parallel_size: 2,
                context_parallel_size: 1}
  sequence_packing: {enabled: false}
  megatron_cfg: {enabled: false}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 1.0e-5}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def imported(folder: Path, text: str = "ppo: {seed: 1}", **settings: Any) -> Imported:
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    (folder / "mine.yaml").write_text(f"defaults: base.yaml\n{text}\n", encoding="utf-8")
    return import_recipe([str(folder / "mine.yaml")], Answers.of_options(None, None, "dgx-h100", settings))


def test_a_value_model_is_a_critic_with_degrees_of_its_own(tmp_path: Path) -> None:
    found = imported(tmp_path)
    found.expect_complete()
    scenario = parse_scenario(found.document())
    assert (scenario.workload, scenario.mesh.dp_shard) == ("grpo", 8)
    assert scenario.rl is not None
    assert (scenario.rl.epochs, scenario.rl.reference, scenario.rl.logprob_batch_size) == (2, "none", 2)
    assert scenario.rl.critic == Critic.model_validate({
        "model": "Qwen/Qwen2.5-1.5B", "implementation": "hf", "mesh": {"tp": 2, "dp_shard": 4, "cp": 1},
        "micro_batch_size": 8, "values_batch_size": 8, "global_batch_size": 512, "recompute": "full",
        "framework_options": scenario.rl.critic.framework_options if scenario.rl.critic else None})
    assert found.origins["rl", "critic", "model"].text == "value.model_name"


def test_a_pass_of_the_reference_is_skipped_or_not(tmp_path: Path) -> None:
    passes = imported(tmp_path, "ppo: {skip_reference_policy_logprobs_calculation: false}\n"
                                "loss_fn: {reference_policy_kl_penalty: 0.001}")
    assert passes.values["rl"]["reference"] == "host"
    with pytest.raises(InputError) as refused:
        imported(tmp_path, "loss_fn: {reference_policy_kl_penalty: 0.001}").expect_complete()
    assert "not 0 [NeMo RL 7ea279ab algorithms/ppo.py" in refused.value.problems[0].message


@pytest.mark.parametrize(("text", "told"), [
    ("value: {optimizer: {name: torch.optim.SGD}}", "value: another optimizer than the policy's"),
    ("value: {precision: float16}", "value: other formats than the policy's"),
    ("value: {dtensor_cfg: {lora_cfg: {enabled: true, match_all_linear: true, dim: 8}}}", "adapters of a value model"),
    ("value: {dtensor_cfg: {cpu_offload: true}}", "value: another place on the host"),
    ("ppo: {use_dynamic_sampling: true}", "prompts that are answered and not kept"),
])
def test_what_is_not_described_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(NotYet) as refused:
        imported(tmp_path, text).expect_complete()
    assert any(told in problem.message for problem in refused.value.problems), refused.value.problems


@pytest.mark.parametrize(("text", "told"), [
    ("value: {reward_model_cfg: {enabled: false}}", "value.reward_model_cfg: expected enabled true"),
    ("value: {sequence_packing: {enabled: true}}", "value.sequence_packing: Sequence packing is not supported"),
    ("value: {no_such_key: 1}", "unknown key 'value.no_such_key'"),
])
def test_what_workers_of_values_refuse_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        imported(tmp_path, text).expect_complete()
    assert any(told in problem.message for problem in refused.value.problems), refused.value.problems
