"""A recipe of verl is the scenario that a person would write, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from simcore.errors import NotYet
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import place

ADAPTERS: Final = """\
# Tested with 2 & 4 GPUs
nproc_per_node=$1
save_path=$2
shift 2
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \\
     -m verl.trainer.fsdp_sft_trainer \\
    data.train_files=$HOME/data/train.parquet \\
    optim.lr=1e-4 \\
    +data.response_dict_keys=['answer'] \\
    data.micro_batch_size_per_gpu=8 \\
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \\
    trainer.default_local_dir=$save_path \\
    trainer.total_epochs=1 $@ \\
    model.lora_rank=32\\
    model.lora_alpha=16 \\
    model.target_modules=all-linear
"""
WRITTEN: Final = """\
name: run
model: Qwen/Qwen2.5-0.5B-Instruct
implementation: hf
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 4}
training:
  method: lora
  seq_len: 1024  # data.max_length by default, to which samples are padded
  micro_batch_size: 8
  global_batch_size: 256
  recompute: full
  precision: {params: fp32, grad_reduce: fp32}
  loss: hf
  lora:
    rank: 32
    alpha: 16
    dtype: fp32
    target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
framework_options:
  attn_implementation: flash_attention_2
  reshard_after_forward: true
  sync_gradients: every
  recompute_by: transformers
"""
FLAT: Final = """\
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
    model.partial_pretrain=llama-3-8b model.strategy=fsdp model.enable_gradient_checkpointing=False \\
    data.train_batch_size=64 data.max_length=512 model.fsdp_config.model_dtype=bf16
"""
GRPO: Final = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.actor.strategy=veomni \\
    actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


def imported(folder: Path, text: str, gpus: int | None = None, name: str = "run.sh", *,
             loose: bool = False) -> Imported:
    (folder / name).write_text(text, encoding="utf-8")
    return import_recipe([str(folder / name)], Answers.of_options(gpus, None, "dgx-h100"), loose=loose)


def test_a_script_with_adapters_is_the_written_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, ADAPTERS, 4)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(WRITTEN, "written.yaml"))


def test_the_number_of_processes_that_is_an_argument_is_asked(tmp_path: Path) -> None:
    found = imported(tmp_path, ADAPTERS)
    assert [question.key for question in found.questions] == ["mesh.dp_shard"]


def test_fsdp_1_has_the_ranks_of_its_launcher(tmp_path: Path) -> None:
    found = imported(tmp_path, FLAT)
    found.expect_complete()
    read = parse_scenario(found.document())
    assert (read.framework, read.mesh.dp_shard) == ("fsdp1", 8)
    assert (read.training.recompute, read.training.precision.params) == ("none", "bf16")
    assert (read.training.micro_batch_size, read.training.global_batch_size) == (4, 64)
    assert found.origins[("training", "micro_batch_size")].kind == "default"


@pytest.mark.parametrize("checkpoints", ["True", "False"])
def test_fsdp_1_is_a_layout_that_the_engine_takes(tmp_path: Path, checkpoints: str) -> None:
    text = FLAT.replace("checkpointing=False", f"checkpointing={checkpoints}").replace("llama-3-8b", "llama-tiny")
    assert not place(parse_scenario(imported(tmp_path, text).document())).problems


def test_values_of_lines_have_their_lines(tmp_path: Path) -> None:
    found = imported(tmp_path, ADAPTERS, 4)
    assert found.origins[("training", "lora", "rank")].where == f"{tmp_path}/run.sh:14"


@pytest.mark.parametrize(("argument", "is_told"), [
    ("+model.fsdp_config.model_dtype=bf16", True), ("++model.fsdp_config.model_dtype=bf16", False),
    ("model.fsdp_config.model_dtype=bf16", False), ("+trainer.default_hdfs_dir=plain", False),
    ("+optim.lr_scheduler=cosine", True), ("+optim.betas=[0.9,0.99]", False), ("+trainer.logger=[console]", False)])
def test_keys_that_have_a_default_are_not_appended(tmp_path: Path, argument: str, *, is_told: bool) -> None:
    """Hydra 1.3.2 _apply_overrides_to_config: an item is already there, unless it is null, a list or a mapping."""
    found = imported(tmp_path, ADAPTERS.replace("+data.response_dict_keys=['answer']", argument), 4)
    key = argument.lstrip("+").partition("=")[0]
    assert [(one.where, one.message) for one in found.wrong] == ([(
        f"{tmp_path}/run.sh:9", f"+{key}: sft_trainer.yaml has this key, and Hydra does not append it: {key} sets it",
    )] if is_told else [])


@pytest.mark.parametrize(("argument", "is_told"), [
    ("model.lora_adapter_path=null", True), ("trainer.default_hdfs_dir=plain", False),
    ("data.multiturn.enable=false", False), ("++model.lora_adapter_path=null", False),
    ("+model.lora_adapter_path=null", False)])
def test_keys_that_the_defaults_lack_are_not_set(tmp_path: Path, argument: str, *, is_told: bool) -> None:
    """Hydra 1.3.2: "Could not override ... Key ... is not in struct"."""
    found = imported(tmp_path, ADAPTERS.replace("+data.response_dict_keys=['answer']", argument), 4)
    assert [one.message for one in found.wrong] == (["model.lora_adapter_path: sft_trainer.yaml has no such key, which "
                                                     "Hydra does not set: +model.lora_adapter_path appends it"]
                                                    if is_told else [])


@pytest.mark.parametrize(("change", "told"), [
    ("model.fsdp_config.cpu_offload=True", "offload of verl's supervised trainer"),
    ("model.strategy=ddp", "the strategy ddp"),
    ("optim.optimizer_impl=bitsandbytes.optim", "an optimizer of bitsandbytes.optim"),
])
def test_what_no_scenario_can_say_is_refused_by_name(tmp_path: Path, change: str, told: str) -> None:
    found = imported(tmp_path, FLAT.replace("data.max_length", f"{change} data.max_length"))
    assert any(told in problem.message and problem.where == f"{tmp_path}/run.sh:3" for problem in found.refused)


def test_the_embedding_is_a_unit_of_fsdp_2_where_no_head_is_tied_to_it(tmp_path: Path) -> None:
    """verl b178a3cd utils/fsdp_utils.py:524."""
    found = imported(tmp_path, FLAT.replace("strategy=fsdp ", "strategy=fsdp2 "))
    assert found.values["framework_options"]["wrap"] == "separate_embedding"
    tied = imported(tmp_path, FLAT.replace("strategy=fsdp ", "strategy=fsdp2 ").replace("llama-3-8b", "llama-3.2-3b"))
    assert "wrap" not in tied.values["framework_options"]


def test_a_value_that_only_a_shell_knows_is_told_where_it_counts(tmp_path: Path) -> None:
    found = imported(tmp_path, FLAT.replace("max_length=512", "max_length=$LENGTH"))
    assert any("data.max_length is not known from the script alone" in str(problem) for problem in found.wrong)


def test_a_misspelt_key_is_unknown(tmp_path: Path) -> None:
    found = imported(tmp_path, FLAT.replace("max_length", "max_lenght"))
    assert [problem.where for problem in found.unknown] == [f"{tmp_path}/run.sh:3"]


@pytest.mark.parametrize("loose", [False, True])
def test_reinforcement_learning_is_refused_by_name(tmp_path: Path, loose: bool) -> None:
    found = imported(tmp_path, GRPO, loose=loose)
    told = "GRPO by verl's workers over VeOmni and vllm (served: FSDP or FSDP2 or Megatron, and vllm or sglang)"
    assert told in str(found.refused[0])
    with pytest.raises(NotYet):
        found.expect_complete()


def test_a_yaml_of_reinforcement_learning_is_refused_by_name(tmp_path: Path) -> None:
    text = "defaults: [ppo_trainer, _self_]\nactor_rollout_ref:\n  rollout: {n: '${oc.select:a.b,1}', name: hf}\n"
    found = imported(tmp_path, text, name="mine.yaml")
    assert "PPO by verl's workers over FSDP and hf" in str(found.refused[0])


def test_other_trainers_are_named(tmp_path: Path) -> None:
    found = imported(tmp_path, "python -m verl.trainer.main_generation model.path=x\n")
    assert "the trainer verl.trainer.main_generation" in str(found.refused[0])


def test_offload_that_nothing_reads_is_told_as_such(tmp_path: Path) -> None:
    """verl b178a3cd trainer/fsdp_sft_trainer.py:305."""
    found = imported(tmp_path, ADAPTERS.rstrip() + " model.fsdp_config.offload_params=True\n")
    told = [one.why for one in found.left if one.key == "model.fsdp_config.offload_params"]
    assert told == ["read beside cpu_offload alone (fsdp_sft_trainer.py)"]


YAML: Final = """\
defaults: [{optim: fsdp}, _self_]
data:
  {train_batch_size: 256, micro_batch_size: 16, micro_batch_size_per_gpu: 4, max_length: 1024, balance_dp_token: true,
   chat_template: null, custom_cls: {path: mine.py, name: Mine}, use_shm: false}
model:
  partial_pretrain: Qwen/Qwen2.5-0.5B-Instruct
  fsdp_config: {model_dtype: fp32, wrap_policy: {min_num_params: 1000, transformer_layer_cls_to_wrap: null}}
  external_lib: some.module
  strategy: fsdp2
optim: {lr: 1e-5, lr_scheduler: wsd}
trainer: {nnodes: 2, n_gpus_per_node: 8, test_freq: 10, seed: 1, device: cuda}
"""


def test_keys_of_the_trainers_own_file_say_what_the_trainer_does_with_them(tmp_path: Path) -> None:
    """verl b178a3cd trainer/fsdp_sft_trainer.py:155, :213, :460; utils/fsdp_utils.py apply_fsdp2."""
    found = imported(tmp_path, YAML, 8, "sft.yaml")
    found.expect_complete()
    told = {one.key: f"{one.kind}: {one.why}" for one in found.left}
    assert told["data.micro_batch_size"].startswith("no effect: nothing of the trainer reads it: micro_batch_size_per")
    assert told["data.balance_dp_token"].startswith("not modelled: a number of tokens")
    assert told["data.custom_cls.path"].startswith("not modelled: samples by a class of one's own")
    assert told["model.external_lib"].startswith("not modelled: code that is imported")
    assert "units by names of classes alone" in told["model.fsdp_config.wrap_policy.min_num_params"]
    assert told["trainer.nnodes"] == "no effect: nothing of the trainer reads it: the launcher says the ranks"
    assert "same batches without gradients" in told["trainer.test_freq"]
    assert told["trainer.seed"] == "no effect: the run around the steps"


@pytest.mark.parametrize(("before", "after", "told"), [
    ("chat_template: null", "chat_template: mine", "Apply Chat template from config is not supported yet"),
    ("lr_scheduler: wsd", "lr_scheduler: linear", "Unknown lr scheduler: linear"),
    ("device: cuda", "device: npu", "training on npu"),
    ("transformer_layer_cls_to_wrap: null", "transformer_layer_cls_to_wrap: [Block]", "units by the names of their"),
    ("strategy: fsdp2", "strategy: fsdp", "units by their size")])
def test_values_of_the_trainers_own_file_that_stop_it_are_told(tmp_path: Path, before: str, after: str,
                                                               told: str) -> None:
    found = imported(tmp_path, YAML.replace(before, after), 8, "sft.yaml")
    assert any(told in str(one) for one in (*found.wrong, *found.refused))


def test_the_newer_trainers_file_is_refused_by_its_name(tmp_path: Path) -> None:
    """verl b178a3cd trainer/config/sft_trainer_engine.yaml."""
    text = "defaults:\n  - model@model: hf_model\n  - engine@engine: fsdp\n  - _self_\ndata: {train_batch_size: 256}\n"
    found = imported(tmp_path, text, 8, "engine.yaml")
    assert "the trainer verl.trainer.sft_trainer (read: verl.trainer.fsdp_sft_trainer, " in str(found.refused[0])


def test_ranks_of_the_supervised_trainer_share_sequences(tmp_path: Path) -> None:
    text = FLAT.replace("data.max_length", "ulysses_sequence_parallel_size=2 use_remove_padding=true data.max_length")
    found = imported(tmp_path, text, 8)
    found.expect_complete()
    read = parse_scenario(found.document())
    assert (read.mesh.dp_shard, read.mesh.cp) == (4, 2)
    imported(tmp_path, text.replace("parallel_size=2", "parallel_size=1"), 8).expect_complete()
    assert any("only supported when remove_padding" in str(one) for one in imported(
        tmp_path, text.replace("use_remove_padding=true ", ""), 8).wrong)
