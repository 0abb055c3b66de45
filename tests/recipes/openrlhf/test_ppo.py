"""Scripts of OpenRLHF's PPO trainer: the scenario that a person would write, in both spellings, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from recipes.openrlhf.test_recipe import imported
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

NEWER: Final = """\
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json='{"working_dir": "/openrlhf"}' \\
   -- python3 -m openrlhf.cli.train_ppo_ray \\
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 --reward.num_nodes 1 --reward.num_gpus_per_node 8 \\
   --critic.num_nodes 1 --critic.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 \\
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --train.colocate_all --vllm.gpu_memory_utilization 0.5 \\
   --actor.model_name_or_path meta-llama/Meta-Llama-3-8B --reward.model_name_or_path meta-llama/Llama-3.2-3B \\
   --ckpt.output_dir x --ckpt.path y --ckpt.save_hf --train.batch_size 128 --rollout.batch_size 1024 \\
   --rollout.n_samples_per_prompt 1 --train.max_epochs 1 --data.max_len 2048 --data.max_samples 100000 \\
   --train.micro_batch_size 4 --rollout.micro_batch_size 8 --ds.zero_stage 3 --ds.param_dtype bf16 \\
   --actor.adam.lr 5e-7 --critic.adam.lr 9e-6 --algo.kl.init_coef 0.01 --data.prompt_dataset d \\
   --data.input_key context_messages --data.apply_chat_template --reward.normalize_enable \\
   --actor.gradient_checkpointing_enable --ds.packing_samples --vllm.sync_backend nccl --vllm.enforce_eager \\
   --vllm.enable_sleep --ds.enable_sleep
"""
OLD: Final = """\
python3 -m openrlhf.cli.train_ppo_ray \\
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 --reward_num_nodes 1 --reward_num_gpus_per_node 8 \\
   --critic_num_nodes 1 --critic_num_gpus_per_node 8 --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
   --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models --vllm_gpu_memory_utilization 0.5 \\
   --pretrain meta-llama/Meta-Llama-3-8B --reward_pretrain meta-llama/Llama-3.2-3B --save_path x --ckpt_path y \\
   --save_hf_ckpt --micro_train_batch_size 4 --train_batch_size 128 --micro_rollout_batch_size 8 \\
   --rollout_batch_size 1024 --n_samples_per_prompt 1 --max_epochs 1 --prompt_max_len 1024 --max_samples 100000 \\
   --generate_max_len 1024 --zero_stage 3 --bf16 --flash_attn --actor_learning_rate 5e-7 --critic_learning_rate 9e-6 \\
   --init_kl_coef 0.01 --prompt_data d --input_key context_messages --apply_chat_template --normalize_reward \\
   --gradient_checkpointing --packing_samples --vllm_sync_backend nccl --enforce_eager --vllm_enable_sleep \\
   --deepspeed_enable_sleep
"""
WRITTEN: Final = """\
name: run
workload: grpo
model: meta-llama/Meta-Llama-3-8B
framework: zero3
topology: dgx-h100
mesh: {dp_shard: 8}
training:
  seq_len: 2048
  micro_batch_size: 4
  global_batch_size: 128
  recompute: full
  loss: policy_fp32
  precision: {compute: bf16}
  optimizer: {name: adamw, implementation: fused}
framework_options: {attn_implementation: flash_attention_2}
rl:
  trainer: openrlhf
  prompts: 1024
  generations: 1
  logprob_batch_size: 8
  reference: device
  optimizer_offload: true
  critic: {model: meta-llama/Llama-3.2-3B}
  reward: {model: meta-llama/Llama-3.2-3B}
generation:
  tp: 2
  sleep_level: 1
  gpu_memory_utilization: 0.5
  enforce_eager: true
  prefix_caching: false
"""
GRPO: Final = NEWER.replace("n_samples_per_prompt 1", "n_samples_per_prompt 8 --algo.advantage.estimator group_norm")


@pytest.mark.parametrize("text", [NEWER, OLD], ids=["newer", "old"])
def test_a_script_is_the_written_scenario(tmp_path: Path, text: str) -> None:
    found = imported(tmp_path, text)
    found.expect_complete()
    read = parse_scenario(found.document())
    prompt = "" if text == NEWER else "  prompt_tokens: 1024\n"
    assert read == parse_scenario(parse_document(WRITTEN.replace("  prompts:", f"{prompt}  prompts:"), "written.yaml"))
    assert not check(read).problems


def block(tmp_path: Path, text: str, name: str) -> dict[str, Any]:
    found = imported(tmp_path, text)
    found.expect_complete()
    return dict(found.values[name])


def test_an_estimator_of_groups_has_no_critic(tmp_path: Path) -> None:
    rl = block(tmp_path, GRPO, "rl")
    assert "critic" not in rl
    assert rl["generations"] == 8
    away = block(tmp_path, GRPO.replace("--reward.model_name_or_path meta-llama/Llama-3.2-3B",
                                        "--reward.remote_url f.py"), "rl")
    assert "reward" not in away
    assert block(tmp_path, GRPO.replace("init_coef 0.01", "init_coef 0"), "rl")["reference"] == "none"


def test_temperature_and_entropy_choose_the_head(tmp_path: Path) -> None:
    for more, loss in (("--rollout.temperature 0.8", "policy_fp32_divided"),
                       ("--rollout.temperature 1.0", "policy_fp32"),
                       ("--actor.entropy_coef 0.01", "policy_fp32_entropy"), ("--actor.entropy_coef 0", "policy_fp32")):
        assert block(tmp_path, GRPO.replace("--vllm.enforce_eager", f"--vllm.enforce_eager {more}"),
                     "training")["loss"] == loss


def test_dynamic_batches_hold_as_many_sequences_as_tokens_allow(tmp_path: Path) -> None:
    text = GRPO.replace("--vllm.enforce_eager", "--train.dynamic_batch_enable --train.max_tokens_per_gpu 16384")
    assert block(tmp_path, text, "training")["micro_batch_size"] == 8
    assert block(tmp_path, text, "rl")["logprob_batch_size"] == 8
    assert block(tmp_path, text.replace("16384", "14000"), "training")["micro_batch_size"] == 4


def test_engines_on_gpus_of_their_own_do_not_sleep(tmp_path: Path) -> None:
    text = GRPO.replace("--train.colocate_all", "--train.colocate_actor_ref").replace(
        "--reward.model_name_or_path meta-llama/Llama-3.2-3B", "--reward.remote_url f.py")
    generation = block(tmp_path, text, "generation")
    assert (generation["colocated"], generation["engines"], generation["tp"]) == (False, 4, 2)
    assert "sleep_level" not in generation
    assert not check(parse_scenario(imported(tmp_path, text).document())).problems


@pytest.mark.parametrize(("text", "told"), [
    (NEWER.replace("--train.colocate_all", "--train.colocate_actor_ref"), "a critic model on GPUs of its own"),
    (GRPO.replace("--train.colocate_all", ""), "a reference model on GPUs of its own"),
    (GRPO.replace("n_samples_per_prompt 8", "n_samples_per_prompt 1"), "requires n_samples_per_prompt > 1"),
    (NEWER.replace("num_engines 4", "num_engines 2"), "must be equal to vllm_num_engines"),
    (NEWER.replace("--vllm.enforce_eager", "--train.async_enable"), "the asynchronous trainer"),
    (NEWER.replace("--vllm.enforce_eager", "--ds.lora.rank 8"), "adapters of the policy"),
    (NEWER.replace("--vllm.enforce_eager", "--ds.ring_attn_size 2"), "ring-flash-attn"),
    (NEWER.replace("--vllm.enforce_eager", "--rollout.temperature 0.8 --actor.entropy_coef 0.1"), "inplace"),
    (NEWER.replace("--vllm.enforce_eager", "--data.max_images_per_prompt 1"), "images a prompt"),
    (NEWER.replace("--vllm.num_engines 4", ""), "generation without vLLM"),
    (NEWER.replace("--reward.model_name_or_path meta-llama/Llama-3.2-3B", ""), "nothing scores")])
def test_what_is_not_read_is_refused_by_its_name(tmp_path: Path, text: str, told: str) -> None:
    found = imported(tmp_path, text)
    assert any(told in str(one) for one in (*found.refused, *found.wrong)), [
        str(one) for one in (*found.refused, *found.wrong)]
