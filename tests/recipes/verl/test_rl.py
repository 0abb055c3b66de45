"""Scripts of verl's reinforcement learning: the scenario that a person would write, and what is refused by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from recipes.verl.test_recipe import imported
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe
from simcore.recipes.verl.batches import _varying
from simcore.simulate import check, simulate

SCRIPT: Final = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet \\
    data.train_batch_size=64 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.entropy_coeff=0 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \\
    trainer.n_gpus_per_node=4 \\
    trainer.nnodes=2 $@
"""
WRITTEN: Final = """\
name: run
workload: grpo
model: Qwen/Qwen2.5-0.5B-Instruct
implementation: hf
framework: fsdp1
topology: dgx-h100
mesh: {dp_shard: 8}
training:
  seq_len: 1536
  micro_batch_size: 2
  global_batch_size: 80  # 16 prompts of 5 answers
  recompute: full
  precision: {params: fp32, grad_reduce: fp32}
  loss: flash
rl: {trainer: verl, prompts: 64, generations: 5, logprob_batch_size: 4, reference: host, prompt_tokens: 512,
     param_offload: true}
generation: {tp: 1, gpu_memory_utilization: 0.6, max_model_len: 1536, sleep_level: 2, max_num_batched_tokens: 8192,
             max_num_seqs: 256, prefix_caching: true}
framework_options: {attn_implementation: flash_attention_2, sync_gradients: every}
"""
_ANY: Final = "    trainer.nnodes=2 $@\n"


def test_a_script_is_the_written_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(WRITTEN, "written.yaml"))
    assert not check(parse_scenario(found.document())).problems


def test_sglang_has_its_own_defaults_where_verl_sends_it_nothing(tmp_path: Path) -> None:
    """Prefills and prefix caching are SGLang's own; what only vLLM reads has no effect."""
    more = ("actor_rollout_ref.rollout.max_num_batched_tokens=4096",
            "actor_rollout_ref.rollout.multi_stage_wake_up=True",
            "actor_rollout_ref.rollout.enable_chunked_prefill=False",
            "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3")
    lines = "".join(f"    {one} \\\n" for one in more)
    found = imported(tmp_path, SCRIPT.replace("name=vllm", "name=sglang").replace(_ANY, lines + _ANY))
    found.expect_complete()
    written = WRITTEN.replace("generation: {", "generation: {engine: sglang, ").replace(
        ", max_num_batched_tokens: 8192,", ",").replace(", prefix_caching: true}", "}")
    read = parse_scenario(found.document())
    assert read == parse_scenario(parse_document(written, "written.yaml"))
    assert not check(read).problems


def test_a_pass_of_more_sequences_than_a_rank_has_is_one_of_all_of_them(tmp_path: Path) -> None:
    """64 prompts of 5 answers over 8 ranks are 40 sequences for each."""
    size = "log_prob_micro_batch_size_per_gpu"
    found = imported(tmp_path, SCRIPT.replace(f"{size}=4", f"{size}=64"))
    found.expect_complete()
    read = parse_scenario(found.document())
    assert read.rl is not None
    assert read.rl.logprob_batch_size == 40
    assert not check(read).problems


def test_a_file_that_the_command_names_is_asked_for(tmp_path: Path) -> None:
    text = SCRIPT.replace("main_ppo \\\n", "main_ppo --config-name=mine \\\n")
    alone = imported(tmp_path, text)
    assert any("names mine.yaml" in problem.message for problem in alone.wrong)
    own = tmp_path / "mine.yaml"
    own.write_text("defaults: [ppo_trainer, _self_]\nactor_rollout_ref: {hybrid_engine: true, rollout: {max_num_seqs: "
                   "64}}\n")
    found = import_recipe([str(tmp_path / "run.sh"), str(own)], Answers.of_options(None, None, "dgx-h100"))
    found.expect_complete()
    read = parse_scenario(found.document())
    assert read.generation is not None
    assert read.generation.max_num_seqs == 64


@pytest.mark.parametrize(("argument", "told"), [
    ("+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=ascend", "kernels of SGLang: ascend"),
    ("+actor_rollout_ref.rollout.engine_kwargs.sglang.page_size=16", "a setting of SGLang that is not described"),
    ("actor_rollout_ref.rollout.quantization=fp8", "an engine in few bits")])
def test_what_sglang_would_do_otherwise_is_refused(tmp_path: Path, argument: str, told: str) -> None:
    text = SCRIPT.replace("name=vllm", "name=sglang").replace(_ANY, f"    {argument} \\\n{_ANY}")
    found = imported(tmp_path, text)
    assert any(told in str(one) for one in found.refused), [str(one) for one in found.refused]


def test_a_head_that_scores_tokens_makes_logits_in_chunks(tmp_path: Path) -> None:
    """512 rows at once in place of 3,072: less memory at the highest moment of training, and of scoring."""
    text = SCRIPT.replace(_ANY, "    actor_rollout_ref.model.use_fused_kernels=True \\\n" + _ANY)
    fused, whole = (parse_scenario(imported(tmp_path, one).document()) for one in (text, SCRIPT))
    assert (fused.training.loss, whole.training.loss) == ("fused_linear", "flash")
    held = [{phase.phase: phase.device_bytes for phase in simulate(one).phases} for one in (fused, whole)]
    for phase in ("logprob", "training"):
        assert held[0][phase] < held[1][phase], phase


def test_microbatches_of_all_ranks_are_shared_out(tmp_path: Path) -> None:
    text = SCRIPT.replace("ppo_micro_batch_size_per_gpu=2", "ppo_micro_batch_size=16")
    assert parse_scenario(imported(tmp_path, text).document()).training.micro_batch_size == 2


def test_microbatches_by_tokens_are_the_next_number_that_divides(tmp_path: Path) -> None:
    """80 sequences over 8 ranks are 10, of which 9,216 tokens hold 6: two microbatches of 5; all 320 are 40: 7 of 6."""
    text = SCRIPT.replace("actor.ppo_micro_batch_size_per_gpu=2", "actor.use_dynamic_bsz=True \\\n"
                          "    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=9216")
    read = parse_scenario(imported(tmp_path, text).document())
    assert read.rl is not None
    assert (read.training.micro_batch_size, read.rl.logprob_batch_size) == (5, 8)


@pytest.mark.parametrize(("sequences", "length", "most", "size"), [
    (160, 1536, 24000, 16), (160, 1536, 3000, 2), (160, 1536, 4096, 4), (160, 1536, 8192, 8), (10, 1536, 9216, 5),
    (13, 1536, 6200, 0), (64, 1, 64, 64), (5, 1, 9, 5), (7, 1536, 1535, 0)])
def test_the_least_divisor_above_an_equal_cut(sequences: int, length: int, most: int, size: int) -> None:
    """160 sequences of 1,536 tokens are 82 microbatches of 2 in 3,000 tokens, 60 of at most 3 in 4,096."""
    assert _varying(sequences, length, most) == size


def test_ranks_that_share_a_model_are_fewer_than_all(tmp_path: Path) -> None:
    text = SCRIPT.replace(_ANY, "    actor_rollout_ref.actor.fsdp_config.fsdp_size=4 \\\n" + _ANY)
    read = parse_scenario(imported(tmp_path, text).document())
    assert (read.mesh.dp_shard, read.mesh.dp_replicate) == (4, 2)


def test_without_a_penalty_there_is_no_reference_policy(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT.replace("use_kl_loss=True", "use_kl_loss=False"))
    read = parse_scenario(found.document())
    assert read.rl is not None
    assert read.rl.reference == "none"


def test_a_model_that_only_the_shell_knows_is_asked(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT.replace("Qwen/Qwen2.5-0.5B", "$HOME/Qwen2.5-0.5B"))
    assert [question.key for question in found.questions] == ["model"]
    assert "$HOME" in found.questions[0].text
    assert found.questions[0].option.endswith("such as qwen2.5-0.5b")


@pytest.mark.parametrize(("path", "script", "near"), [
    ("$ROOT/models/Qwen3-30B-A3B-Base", "run.sh", "qwen3-30b-a3b"), ("$MODEL", "run.sh", ""),
    ("$MODEL", "run_moonlight16b_a3b_gsm8k.sh", "moonlight-16b-a3b"),
    ("qwen3-8b/$MODEL", "run.sh", ""), ("$ROOT/mine", "run.sh", "")])
def test_a_question_names_the_model_that_the_end_of_a_path_has(tmp_path: Path, path: str, script: str,
                                                               near: str) -> None:
    """Folders before the name may be of another model; a path that tells nothing leaves the script's name."""
    place = tmp_path / script
    place.write_text(SCRIPT.replace("Qwen/Qwen2.5-0.5B", path), encoding="utf-8")
    (asked,) = import_recipe([str(place)], Answers.of_options(8, None, "dgx-h100", {})).questions
    assert asked.option.partition(", such as ")[2] == near


@pytest.mark.parametrize(("argument", "told"), [
    ("actor_rollout_ref.actor.strategy=veomni", "GRPO by verl's workers over VeOmni and vllm"),
    ("actor_rollout_ref.rollout.name=trtllm", "over FSDP and trtllm"),
    ("algorithm.adv_estimator=remax", "one more answer for each prompt"),
    ("actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", "a reference policy in fp32 beside an actor in bf16"),
    ("actor_rollout_ref.ref.fsdp_config.model_dtype=bfloat16", "a reference policy in bf16 beside an actor in fp32"),
    ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward=False", "an actor that does not reshard beside"),
    ("actor_rollout_ref.ref.fsdp_config.reshard_after_forward=False", "the reference policy with units of their own"),
    ("actor_rollout_ref.ref.fsdp_config.dtype=float32", "the reference policy with units of their own"),
    ("+actor_rollout_ref.model.override_config.attention_dropout=0.1", "dropout of attention"),
    ("data.train_batch_size=40", "a last batch of a step that is smaller"),
    ("actor_rollout_ref.actor.calculate_entropy=True", "an entropy that is kept and not in the loss"),
    ("actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.exclude_modules=x", "modules without adapters by"),
    ("actor_rollout_ref.model.lora_adapter_path=x", "adapters that are read from files"),
    ("actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.actor.entropy_coeff=0.1", "of padded rows"),
    ("actor_rollout_ref.model.use_fused_kernels=True actor_rollout_ref.model.fused_kernel_options.impl_backend=triton",
     "a head that scores tokens by Triton"),
    ("actor_rollout_ref.model.use_fused_kernels=True actor_rollout_ref.actor.entropy_coeff=0.1", "an entropy in the"),
    ("actor_rollout_ref.model.use_fused_kernels=False actor_rollout_ref.actor.use_fused_kernels=True", "one alone has"),
    ("actor_rollout_ref.model.use_fused_kernels=True actor_rollout_ref.model.use_remove_padding=False", "padded rows"),
    ("actor_rollout_ref.actor.ppo_epochs=2", "passes over a step's sequences: 2"),
    ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8", "with more sequences than the policy's 4"),
    ("actor_rollout_ref.rollout.quantization=fp8", "an engine in few bits"),
    ("algorithm.rollout_correction.bypass_mode=True", "log-probabilities of the engine"),
    ("trainer.use_legacy_worker_impl=disable", "workers of another kind: disable"),
    ("+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=32", "a setting of vLLM that is not described")])
def test_what_another_step_would_need_is_refused_by_its_key(tmp_path: Path, argument: str, told: str) -> None:
    found = imported(tmp_path, SCRIPT.replace(_ANY, f"    {argument} \\\n{_ANY}"))
    assert any(told in str(one) for one in found.refused), [str(one) for one in found.refused]


def test_a_misspelt_key_is_unknown(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT.replace("actor.use_kl_loss", "actor.use_kl_los"))
    assert [problem.where for problem in found.unknown] == [f"{tmp_path}/run.sh:10"]


@pytest.mark.parametrize("word", ["fp32", "float32"])
def test_a_reference_policy_in_the_actors_format_is_told_as_such(tmp_path: Path, word: str) -> None:
    argument = f"    actor_rollout_ref.ref.fsdp_config.model_dtype={word} \\\n"
    assert not imported(tmp_path, SCRIPT.replace(_ANY, argument + _ANY)).refused


@pytest.mark.parametrize(("argument", "told"), [
    ("actor_rollout_ref.actor.ppo_micro_batch_size=16", "expected one of them"),
    ("data.train_batch_size=8", "train_batch_size 8 (8) must be >= ppo_mini_batch_size (16)")])
def test_what_verl_itself_refuses_is_wrong(tmp_path: Path, argument: str, told: str) -> None:
    found = imported(tmp_path, SCRIPT.replace(_ANY, f"    {argument} \\\n{_ANY}"))
    assert any(told in str(one) for one in found.wrong), [str(one) for one in found.wrong]


def test_an_engine_that_ends_sequences_earlier_shortens_them(tmp_path: Path) -> None:
    text = SCRIPT.replace(_ANY, f"    actor_rollout_ref.rollout.max_model_len=1024 \\\n{_ANY}")
    assert parse_scenario(imported(tmp_path, text).document()).training.seq_len == 1024


def test_a_switch_that_is_off_does_not_reach_the_engine(tmp_path: Path) -> None:
    text = SCRIPT.replace(_ANY, f"    actor_rollout_ref.rollout.enable_prefix_caching=False \\\n{_ANY}")
    generation = parse_scenario(imported(tmp_path, text).document()).generation
    assert generation is not None
    assert generation.prefix_caching is True


def test_an_entropy_with_a_coefficient_is_in_the_loss_compiled_or_not(tmp_path: Path) -> None:
    for more, loss in ((("use_torch_compile=False",), "flash_eager"), (("use_torch_compile=True",), "flash"),
                       (("entropy_coeff=0.001",), "flash_entropy"),
                       (("entropy_coeff=0.001", "use_torch_compile=False"), "flash_entropy_eager"),
                       (("use_torch_compile=False actor_rollout_ref.model.use_remove_padding=False",), "flash_padded")):
        arguments = "".join(f"    actor_rollout_ref.actor.{one} \\\n" for one in more)
        found = imported(tmp_path, SCRIPT.replace("    actor_rollout_ref.actor.entropy_coeff=0 \\\n", arguments))
        assert parse_scenario(found.document()).training.loss == loss
    for argument in ("entropy_checkpointing=True", "entropy_from_logits_with_chunking=True"):
        text = SCRIPT.replace("entropy_coeff=0", f"entropy_coeff=0.1 actor_rollout_ref.actor.{argument}")
        assert imported(tmp_path, text).refused
        assert not imported(tmp_path, text.replace("entropy_coeff=0.1", "entropy_coeff=0")).refused


def test_adapters_are_units_and_the_actor_its_own_reference(tmp_path: Path) -> None:
    text = SCRIPT.replace(_ANY, "    actor_rollout_ref.model.lora_rank=20 actor_rollout_ref.model.lora_alpha=32 \\\n"
                          "    actor_rollout_ref.model.target_modules=all-linear \\\n"
                          f"    actor_rollout_ref.rollout.layered_summon=True \\\n{_ANY}")
    found = imported(tmp_path, text)
    found.expect_complete()
    read = parse_scenario(found.document())
    assert read.rl is not None
    assert read.generation is not None
    assert (read.training.method, read.training.lora.rank, read.training.lora.alpha) == ("lora", 20, 32)
    assert len(read.training.lora.target_modules) == 7
    assert (read.rl.reference, read.rl.layered_summon) == ("device", True)
    assert (read.generation.max_loras, read.generation.max_lora_rank) == (1, 32)
    assert not check(read).problems
    assert imported(tmp_path, text.replace("lora_rank=20", "lora_rank=1000")).wrong


def test_ranks_that_share_sequences_have_one_batch(tmp_path: Path) -> None:
    """80 sequences over 4 pairs of ranks, whose microbatches hold twice the tokens."""
    text = SCRIPT.replace(_ANY, f"    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\\n{_ANY}")
    found = imported(tmp_path, text)
    found.expect_complete()
    read = parse_scenario(found.document())
    assert (read.mesh.dp_shard, read.mesh.cp, read.num_microbatches) == (4, 2, 10)
    assert not check(read).problems
    dynamic = text.replace("actor.ppo_micro_batch_size_per_gpu=2", "actor.use_dynamic_bsz=True \\\n"
                           "    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4608")
    assert parse_scenario(imported(tmp_path, dynamic).document()).training.micro_batch_size == 5
    padded = text.replace("entropy_coeff=0", "entropy_coeff=0 actor_rollout_ref.model.use_remove_padding=False")
    assert any("you must enable `use_remove_padding`" in str(one) for one in imported(tmp_path, padded).wrong)
    assert imported(tmp_path, text.replace("parallel_size=2 ", "parallel_size=3 ")).wrong


def test_a_longer_limit_of_rotated_positions_changes_no_tensor(tmp_path: Path) -> None:
    for model, refused in (("Qwen/Qwen2.5-0.5B-Instruct", False), ("gpt2", True)):
        text = SCRIPT.replace("Qwen/Qwen2.5-0.5B-Instruct", model).replace(
            _ANY, "    +actor_rollout_ref.model.override_config.max_position_embeddings=32768 \\\n" + _ANY)
        told = [str(one) for one in imported(tmp_path, text).refused]
        assert any("a field of the model's configuration" in one for one in told) is refused


SECOND: Final = SCRIPT.replace("    actor_rollout_ref.actor.fsdp_config.param_offload=True \\\n",
                               "    actor_rollout_ref.actor.strategy=fsdp2 \\\n").replace("Qwen2.5-0.5B", "Qwen2.5-7B")


def test_fsdp2_is_a_framework_of_its_own_whose_units_follow_the_head(tmp_path: Path) -> None:
    """verl b178a3cd workers/fsdp_workers.py _build_model_optimizer, utils/fsdp_utils.py apply_fsdp2."""
    found = imported(tmp_path, SECOND)
    found.expect_complete()
    written = WRITTEN.replace("fsdp1", "fsdp2").replace(",\n     param_offload: true", "").replace(
        "Qwen2.5-0.5B", "Qwen2.5-7B").replace("sync_gradients: every}", "sync_gradients: every, "
        "reshard_after_forward: true, wrap: separate_embedding, recompute_by: transformers}")
    assert parse_scenario(found.document()) == parse_scenario(parse_document(written, "written.yaml"))
    assert not check(parse_scenario(found.document())).problems
    tied = imported(tmp_path, SECOND.replace("Qwen2.5-7B", "Qwen2.5-0.5B"))
    assert "wrap" not in tied.values["framework_options"]


def test_a_policy_that_fsdp2_offloads_itself_is_not_brought_away_by_the_workers(tmp_path: Path) -> None:
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    lines = "".join(f"    {fsdp}.{name}=True \\\n" for name in (
        "offload_policy", "param_offload", "optimizer_offload", "forward_prefetch", "use_orig_params"))
    lines += f"    +{fsdp}.mixed_precision.reduce_dtype=bf16 \\\n    +{fsdp}.mixed_precision.param_dtype=bf16 \\\n"
    found = imported(tmp_path, SECOND.replace(_ANY, lines + _ANY))
    found.expect_complete()
    assert found.values["training"]["offload"] == dict.fromkeys(("params", "gradients", "optimizer"), "host")
    assert found.values["training"]["precision"]["grad_reduce"] == "bf16"
    assert not {"param_offload", "optimizer_offload"} & set(found.values["rl"])
    assert not {"forward_prefetch", "use_orig_params"} & set(found.values["framework_options"])
    assert not check(parse_scenario(found.document())).problems


def test_dapos_trainer_answers_batches_until_they_hold_a_step(tmp_path: Path) -> None:
    """64 prompts of a step, in batches of 48: two of them; the others are of a step without a filter."""
    lines = ("data.gen_batch_size=48", "algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc",
             "algorithm.filter_groups.max_num_gen_batches=10", "reward_model.overlong_buffer.enable=True",
             "+actor_rollout_ref.model.override_config.resid_pdrop=0.",
             "+actor_rollout_ref.model.override_config.embd_pdrop=0.")
    text = SCRIPT.replace("verl.trainer.main_ppo", "recipe.dapo.main_dapo").replace(
        _ANY, "".join(f"    {one} \\\n" for one in lines) + _ANY)
    found = imported(tmp_path, text)
    found.expect_complete()
    assert found.values["rl"]["generated_prompts"] == 96
    report = simulate(parse_scenario(found.document()), timed=False)
    assert not report.problems
    assert any("96 prompts are answered once, and 64" in one.value for one in report.assumptions)
    plain = imported(tmp_path, text.replace("filter_groups.enable=True", "filter_groups.enable=False"))
    assert "without filter_groups" in str(plain.refused[0])
    scored = imported(tmp_path, text.replace("algorithm.adv_estimator=grpo", "algorithm.adv_estimator=grpo "
                                             "algorithm.use_kl_in_reward=True"))
    assert "a penalty in the rewards" in str(scored.refused[0])
