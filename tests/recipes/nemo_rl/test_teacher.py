"""Recipes of distillation: a teacher's block is read as that of a policy, with its own places and degrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from simcore.errors import InputError, NotYet
from simcore.inputs.scenario import Teacher, parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

BASE: Final = """\
distillation: {num_prompts_per_step: 64, num_generations_per_prompt: 1, topk_logits_k: 32, max_rollout_turns: 1,
               val_period: 20}
loss_fn: {kl_type: mixed, mixed_kl_weight: 0.5, zero_outside_topk: false}
policy: &POLICY
  model_name: Qwen/Qwen3-1.7B-Base
  train_global_batch_size: 32
  train_micro_batch_size: 1
  logprob_batch_size: 2
  max_total_sequence_length: 8192
  precision: bfloat16
  logprob_chunk_size: null
  dtensor_cfg: &DTENSOR
    _v2: true
    enabled: true
    sequence_parallel: false
    tensor_parallel_size: 1
    context_parallel_size: 1
  make_sequence_length_divisible_by: ${.dtensor_cfg.tensor_parallel_size}
  megatron_cfg: {enabled: false}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5e-6}}
  generation:
    backend: vllm
    vllm_cfg: {tensor_parallel_size: 1, max_model_len: "${policy.max_total_sequence_length}"}
    colocated: {enabled: true}
teacher:
  <<: *POLICY
  model_name: Qwen/Qwen3-32B
  logprob_batch_size: 4
  dtensor_cfg:
    <<: *DTENSOR
    tensor_parallel_size: 4
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def imported(folder: Path, text: str = "", **settings: Any) -> Imported:
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    (folder / "mine.yaml").write_text(f"defaults: base.yaml\n{text or 'distillation: {seed: 1}'}", encoding="utf-8")
    return import_recipe([str(folder / "mine.yaml")], Answers.of_options(None, None, "dgx-h100", settings))


def test_a_teachers_block_is_read_as_a_policy_with_degrees_of_its_own(tmp_path: Path) -> None:
    found = imported(tmp_path)
    found.expect_complete()
    scenario = parse_scenario(found.document())
    assert scenario.workload == "distillation"
    assert scenario.teacher == Teacher.model_validate({
        "model": "Qwen/Qwen3-32B", "implementation": "hf", "mesh": {"tp": 4, "dp_shard": 2}, "top_k": 32})
    assert scenario.rl is not None
    assert (scenario.rl.prompts, scenario.rl.logprob_batch_size, scenario.rl.reference) == (64, 4, "none")
    assert (scenario.model, scenario.mesh.dp_shard) == ("Qwen/Qwen3-1.7B-Base", 8)
    origin = found.origins["teacher", "model"]
    assert (origin.text, Path(origin.where).name) == ("teacher.model_name", "base.yaml:26")
    assert not [one for one in found.left if one.kind == "unknown"]
    told = {one.key: one.why for one in found.left}
    assert told["policy.logprob_batch_size"].startswith("there is no pass")
    assert told["teacher.generation.backend"] == "it generates nothing"


@pytest.mark.parametrize(("text", "told"), [
    ("teacher: {dtensor_cfg: {lora_cfg: {enabled: true, target_modules: [], match_all_linear: true, dim: 8}}}",
     "teacher: adapters of a teacher"),
    ("teacher: {dtensor_cfg: {cpu_offload: true}}", "teacher: a teacher that rests on the host"),
    ("teacher: {precision: float16}", "another format than the policy's: fp16"),
    ("teacher: {dtensor_cfg: {_v2: false}}", "teacher: another worker"),
    ("teacher: {quant_cfg: NVFP4}", "teacher.quant_cfg: training that is aware of quantisation"),
    ("loss_fn: {zero_outside_topk: true}", "an entropy over the whole vocabulary"),
])
def test_what_a_teacher_cannot_be_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(NotYet) as refused:
        imported(tmp_path, text + "\n").expect_complete()
    messages = [problem.message for problem in refused.value.problems]
    assert any(told in message for message in messages), messages
    assert not any("policy." in message for message in messages if "teacher" in message), messages


def test_an_unknown_key_of_a_teacher_has_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        imported(tmp_path, "teacher: {dtensor_cfg: {no_such_key: 3}}\n").expect_complete()
    assert "'teacher.dtensor_cfg.no_such_key'" in refused.value.problems[0].message


def test_distillation_without_a_teacher_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(BASE.partition("teacher:")[0] + "cluster: {gpus_per_node: 8}\n",
                                        encoding="utf-8")
    with pytest.raises(InputError) as refused:
        import_recipe([str(tmp_path / "mine.yaml")], Answers.of_options(None, None, "dgx-h100", {})).expect_complete()
    assert any(problem.message.startswith("teacher: expected a block") for problem in refused.value.problems)
