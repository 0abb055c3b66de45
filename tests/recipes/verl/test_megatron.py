"""Scripts of verl over Megatron: the scenario that a person would write, mbridge's defaults, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from recipes.verl.test_recipe import imported
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

SCRIPT: Final = """\
python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=64 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.optimizer_offload=True \\
    actor_rollout_ref.actor.megatron.grad_offload=True \\
    actor_rollout_ref.actor.use_torch_compile=False \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 $@
"""
WRITTEN: Final = """\
name: run
workload: grpo
model: Qwen/Qwen2.5-0.5B-Instruct
framework: megatron
framework_version: core 0.16.1 + bridge 0.3.1
topology: dgx-h100
mesh: {pp: 2, tp: 2, dp_shard: 2}
training:
  seq_len: 1536
  micro_batch_size: 2
  global_batch_size: 80  # 16 prompts of 5 answers
  recompute: none
  sequence_parallel: true
  precision: {grad_reduce: fp32, main_grads: fp32}
rl: {trainer: verl, prompts: 64, generations: 5, logprob_batch_size: 4, reference: device, prompt_tokens: 512,
     optimizer_offload: true}
generation: {tp: 1, gpu_memory_utilization: 0.6, max_model_len: 1536, sleep_level: 2, max_num_batched_tokens: 8192,
             max_num_seqs: 256, prefix_caching: true}
framework_options: {attention_backend: flash, apply_rope_fusion: false,
  deallocate_pipeline_outputs: false, gradient_accumulation_fusion: false,
                    overlap_grad_reduce: false, overlap_param_gather: false, cross_entropy_loss_fusion: false}
"""
_ANY: Final = "    trainer.nnodes=1 $@\n"


def with_argument(argument: str) -> str:
    return SCRIPT.replace(_ANY, f"    {argument} \\\n{_ANY}")


def test_a_script_is_the_written_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(WRITTEN, "written.yaml"))
    assert not check(parse_scenario(found.document())).problems


@pytest.mark.parametrize(("argument", "place"), [
    ("actor_rollout_ref.actor.megatron.param_offload=True", "host"),
    ("actor_rollout_ref.ref.megatron.param_offload=True", "host"),
    ("actor_rollout_ref.actor.use_kl_loss=False", "none")])
def test_a_reference_policy_is_where_its_parameters_are_away(tmp_path: Path, argument: str, place: str) -> None:
    read = parse_scenario(imported(tmp_path, with_argument(argument)).document())
    assert read.rl is not None
    assert read.rl.reference == place


def test_experts_have_the_settings_of_mbridges_model(tmp_path: Path) -> None:
    text = with_argument("actor_rollout_ref.actor.megatron.expert_model_parallel_size=2").replace(
        "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-30B-A3B")
    options = parse_scenario(imported(tmp_path, text).document()).framework_options
    assert (options["bias_activation_fusion"], options["moe_permute_fusion"]) == (True, False)


@pytest.mark.parametrize(("given", "expected"), [
    ("granularity=full method=uniform num_layers=1", "full"),
    ("granularity=full method=block num_layers=3", "block"), ("granularity=selective", "core_attn")])
def test_recomputation_is_that_of_core(tmp_path: Path, given: str, expected: str) -> None:
    lines = " \\\n    ".join(f"+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_{one}"
                             for one in given.split())
    read = parse_scenario(imported(tmp_path, with_argument(lines)).document())
    assert expected in str(read.training.recompute)


def test_an_optimizer_on_the_host_is_cores_own(tmp_path: Path) -> None:
    at = "+actor_rollout_ref.actor.optim.override_optimizer_config"
    lines = " \\\n    ".join(f"{at}.{one}" for one in (
        "optimizer_cpu_offload=True", "optimizer_offload_fraction=1.", "use_precision_aware_optimizer=True"))
    read = parse_scenario(imported(tmp_path, with_argument(lines)).document())
    assert read.training.offload.optimizer == "host"
    assert not check(read).problems


@pytest.mark.parametrize(("argument", "told"), [
    ("actor_rollout_ref.actor.megatron.use_mbridge=False", "weights by verl's own converters"),
    ("actor_rollout_ref.actor.megatron.vanilla_mbridge=False", "weights by Megatron-Bridge"),
    ("actor_rollout_ref.actor.entropy_coeff=0.01", "an entropy in the loss of workers over Megatron"),
    ("actor_rollout_ref.model.use_fused_kernels=True", "logits in chunks"),
    ("actor_rollout_ref.model.lora.rank=16", "adapters of rank 16"),
    ("actor_rollout_ref.actor.router_replay.mode=R2", "replay of the router's choices: R2"),
    ("+actor_rollout_ref.actor.megatron.override_transformer_config.fp8=e4m3", "a setting of Megatron-Core"),
    ("+actor_rollout_ref.actor.megatron.override_ddp_config.bucket_size=1", "a setting of Megatron-Core"),
    ("+actor_rollout_ref.actor.optim.override_optimizer_config.foo=1", "a field of core's optimizer that is not read"),
    ("+actor_rollout_ref.model.override_config.model_config.hidden_size=8", "a field of the model's configuration")])
def test_what_is_refused_by_its_key(tmp_path: Path, argument: str, told: str) -> None:
    found = imported(tmp_path, with_argument(argument))
    assert any(told in str(one) for one in found.refused), [str(one) for one in found.refused]


def test_microbatches_by_tokens_of_cut_sequences_have_as_many_times_the_tokens(tmp_path: Path) -> None:
    found = []
    for cp, tokens in ((1, 3072), (2, 1536), (2, 3072)):
        text = with_argument(f"actor_rollout_ref.actor.megatron.context_parallel_size={cp} "
                             "actor_rollout_ref.actor.use_dynamic_bsz=True "
                             f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}")
        read = parse_scenario(imported(tmp_path, text).document())
        assert read.rl is not None
        found.append((read.training.micro_batch_size, read.rl.logprob_batch_size))
    assert found == [(2, 2), (2, 2), (4, 4)]


def test_gpus_that_the_degrees_do_not_divide_are_a_problem(tmp_path: Path) -> None:
    text = SCRIPT.replace("trainer.n_gpus_per_node=8", "trainer.n_gpus_per_node=6")
    assert any("6 GPUs are no multiple of" in problem.message for problem in imported(tmp_path, text).wrong)


def test_the_trainers_own_file_sets_the_strategy(tmp_path: Path) -> None:
    first, *others = SCRIPT.splitlines()
    command = "\n".join((first, *(line for line in others if ".megatron." not in line)))
    parent = ("defaults: [ppo_megatron_trainer, _self_]\nalgorithm: {adv_estimator: grpo}\n"
              "actor_rollout_ref: {model: {path: Qwen/Qwen3-0.6B}}\n")
    for text in (command, parent):
        assert imported(tmp_path, text).values["framework"] == "megatron"
        assert imported(tmp_path, text.replace("ppo_megatron_trainer", "ppo_trainer")).values["framework"] == "fsdp1"


CRITIC: Final = SCRIPT.replace("adv_estimator=grpo", "adv_estimator=gae").replace(_ANY, """\
    critic.model.path=Qwen/Qwen2.5-1.5B-Instruct \\
    critic.ppo_micro_batch_size_per_gpu=4 \\
    critic.megatron.tensor_model_parallel_size=2 \\
    critic.megatron.param_offload=True \\
    critic.megatron.override_transformer_config.recompute_granularity=full \\
    critic.megatron.override_transformer_config.recompute_method=uniform \\
    critic.megatron.override_transformer_config.recompute_num_layers=1 \\
    trainer.nnodes=1 $@
""")


def test_a_critic_is_laid_out_as_the_actor(tmp_path: Path) -> None:
    found = imported(tmp_path, CRITIC)
    found.expect_complete()
    scenario = parse_scenario(found.document())
    assert scenario.rl is not None
    assert scenario.rl.critic is not None
    said = {name: getattr(scenario.rl.critic, name) for name in scenario.rl.critic.model_fields_set}
    assert said == {"model": "Qwen/Qwen2.5-1.5B-Instruct", "micro_batch_size": 4, "values_batch_size": 4,
                    "recompute": "full", "param_offload": True}
    assert not check(scenario).problems
    left = {one.key: one.why for one in found.left}
    assert "initialize_model_parallel runs once" in left["critic.megatron.tensor_model_parallel_size"]


def test_what_another_critic_would_need_is_refused_by_its_key(tmp_path: Path) -> None:
    for argument, told in (
            ("critic.megatron.use_mbridge=False", "weights by verl's own converters"),
            ("critic.model.lora.rank=8", "adapters of rank 8"), ("critic.ppo_epochs=2", "passes over a step's"),
            ("critic.optim.optimizer=sgd", "a critic with another value than the actor's None"),
            ("critic.megatron.override_transformer_config.attention_backend=fused", "than the actor's None"),
            ("critic.megatron.override_transformer_config.recompute_granularity=selective", "than layer by layer"),
            ("actor_rollout_ref.actor.megatron.override_ddp_config.overlap_grad_reduce=True",
             "a critic without the actor's True")):
        key = argument.partition("=")[0]
        lines = [line for line in CRITIC.splitlines() if key not in line]
        found = imported(tmp_path, "\n".join([*lines[:-1], f"    {argument} \\", lines[-1]]) + "\n")
        assert any(told in problem.message for problem in found.refused), (argument, found.refused)
