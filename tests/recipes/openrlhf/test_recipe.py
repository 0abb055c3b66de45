"""Scripts of OpenRLHF: the scenario that a person would write, in both spellings, and what is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from checkout import ROOT
from recipes.accounts import unaccounted
from simcore.errors import InputError
from simcore.inputs.document import Document, parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.openrlhf.command import command_of
from simcore.recipes.openrlhf.older import OLDER
from simcore.recipes.openrlhf.strategy import configured
from simcore.recipes.reader import Reader
from simcore.simulate import check

TRUTH: Final[dict[str, Any]] = json.loads((ROOT / "tests/truth/openrlhf/0.11.0.json").read_text(encoding="utf-8"))
NEWER: Final = """\
set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --data.max_len 2048 --data.dataset Open-Orca/OpenOrca --data.input_key question \\
   --train.batch_size 256 --train.micro_batch_size 2 \\
   --model.model_name_or_path meta-llama/Meta-Llama-3-8B \\
   --ckpt.output_dir ./checkpoint --ckpt.save_steps -1 --logger.logging_steps 1 --eval.steps -1 \\
   --ds.zero_stage 2 --ds.param_dtype bf16 --ds.attn_implementation flash_attention_2 \\
   --adam.lr 5e-6 --adam.betas 0.9 0.95 --train.max_epochs 1 --ckpt.load_enable --ds.packing_samples \\
   --model.gradient_checkpointing_enable
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 8 --module $training_commands
fi
"""
OLD: Final = """\
torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft \\
   --max_len 2048 --dataset Open-Orca/OpenOrca --input_key question \\
   --train_batch_size 256 --micro_train_batch_size 2 \\
   --pretrain meta-llama/Meta-Llama-3-8B --save_path ./checkpoint --save_steps -1 --logging_steps 1 --eval_steps -1 \\
   --zero_stage 2 --bf16 --flash_attn --learning_rate 5e-6 --max_epochs 1 --load_checkpoint --packing_samples \\
   --gradient_checkpointing
"""
WRITTEN: Final = """\
name: run
model: meta-llama/Meta-Llama-3-8B
framework: zero2
topology: dgx-h100
mesh: {dp_shard: 8}
training:
  seq_len: 4096
  lengths: packed
  packed_length: 2048
  micro_batch_size: 1
  global_batch_size: 128
  recompute: full
  loss: flash_fp32
  precision: {compute: bf16}
  optimizer: {name: adamw, implementation: fused}
framework_options: {attn_implementation: flash_attention_2}
"""
ANY: Final = " --model.gradient_checkpointing_enable"


def imported(folder: Path, text: str, gpus: int | None = None) -> Imported:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return import_recipe([str(folder / "run.sh")], Answers.of_options(gpus, None, "dgx-h100"))


def with_more(*arguments: str) -> str:
    assert ANY in NEWER
    return NEWER.replace(ANY, f"{ANY} {' '.join(arguments)}")


@pytest.mark.parametrize("text", [NEWER, OLD], ids=["newer", "old"])
def test_a_script_is_the_written_scenario(tmp_path: Path, text: str) -> None:
    found = imported(tmp_path, text)
    found.expect_complete()
    read = parse_scenario(found.document())
    assert read == parse_scenario(parse_document(WRITTEN, "written.yaml"))
    assert not check(read).problems


def flat(data: dict[str, Any], at: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= flat(value, f"{at}{name}.") if isinstance(value, dict) else {f"{at}{name}": value}
    return found


OF_DEEPSPEED: Final = {
    "steps_per_print": 100, "wall_clock_breakdown": False, "prescale_gradients": False, "fp16.enabled": False,
    "checkpoint.load_universal": False, "compile.deepcompile": False, "data_types.grad_accum_dtype": None,
    "tensor_parallel.autotp_size": 1, "zero_optimization.offload_param.device": "none",
    "zero_optimization.offload_optimizer.device": "none", "zero_optimization.offload_optimizer.pin_memory": True,
    "zero_optimization.zero_hpz_partition_size": 1, "zero_optimization.zero_quantized_weights": False,
    "zero_optimization.zero_quantized_gradients": False, "zero_optimization.reduce_scatter": True}
"""Values that OpenRLHF writes and that are DeepSpeed's own, or of logging."""
ARGUMENTS: Final = {"stage": ("ds", "zero_stage"), "adam_offload": ("ds", "adam_offload"), "zpg": ("ds", "zpg"),
                    "overlap_comm": ("ds", "overlap_comm"), "grad_accum_dtype": ("ds", "grad_accum_dtype"),
                    "tensor_parallel_size": ("ds", "tensor_parallel_size"), "max_norm": ("max_norm",)}
LEFT: Final = {"deepcompile": "compile.deepcompile", "use_ds_universal_ckpt": "checkpoint.load_universal"}
"""Switches that are refused, or of files: they are read by themselves."""


def test_the_configuration_is_what_openrlhf_makes_for_deepspeed() -> None:
    """Sizes at "auto" are DeepSpeed's defaults, which is asked of DeepSpeed 0.19.6."""
    seen = 0
    for release, found in TRUTH["releases"].items():
        for row in found["configurations"]:
            given = [(ARGUMENTS[name], value, "here") for name, value in row["given"].items() if name in ARGUMENTS]
            reader = Reader(Document("run.sh", {}).with_values(given))
            ours = flat(configured(reader, Draft("openrlhf", "run.sh", Answers()), None).data)
            theirs = {key: value for key, value in flat(row["made"]).items() if value != "auto"}
            assert row["same"]
            assert ours.pop("optimizer.type") == "AdamW"
            assert ours.items() <= theirs.items(), (release, row["given"])
            rest = {key: value for key, value in theirs.items() if key not in ours}
            for name in LEFT.keys() & row["given"].keys():
                assert rest.pop(LEFT[name]) is True
            assert rest.items() <= OF_DEEPSPEED.items(), (release, row["given"])
            seen += 1
    assert seen == 16


@pytest.mark.parametrize(("arguments", "told"), [
    (("--ds.ring_attn_size 4",), "ring-flash-attn"), (("--ds.deepcompile",), "DeepCompile"),
    (("--optim muon",), "the optimizer muon"), (("--ds.load_in_4bit",), "4 bits without adapters"),
    (("--train.full_determinism_enable",), "the same numbers in each run"),
    (("--ds.grad_accum_dtype fp32",), "gradients accumulated in fp32"),
    (("--ds.experts_implementation eager",), "experts by eager")])
def test_what_is_not_described_is_refused_by_its_key(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    found = imported(tmp_path, with_more(*arguments))
    assert any(told in str(problem) for problem in found.refused), [str(one) for one in found.refused]


def test_settings_of_zero_follow_the_arguments(tmp_path: Path) -> None:
    found = imported(tmp_path, with_more("--ds.adam_offload", "--ds.zpg 4", "--ds.use_liger_kernel", "--max_norm 0.5"
                                         ).replace("zero_stage 2", "zero_stage 3"))
    found.expect_complete()
    assert found.values["framework"] == "zero3"
    assert found.values["training"]["offload"] == {"optimizer": "host"}
    assert found.values["framework_options"]["zero_hpz_partition_size"] == 4
    assert found.values["framework_options"]["use_liger_kernel"] is True


def test_adapters_are_pefts_on_all_linear_layers_and_of_a_base_in_4_bits(tmp_path: Path) -> None:
    found = imported(tmp_path, with_more("--ds.lora.rank 64", "--ds.lora.alpha 32", "--ds.load_in_4bit"))
    found.expect_complete()
    training = found.values["training"]
    assert training["method"] == "qlora"
    assert training["quantization"] == {"format": "nf4", "double_quant": True}
    assert training["lora"] == {"rank": 64, "alpha": 32, "dropout": 0.0, "target_modules": [
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
    assert not check(parse_scenario(found.document())).problems


def test_without_packs_rows_are_padded_and_without_the_switch_attention_is_eager(tmp_path: Path) -> None:
    found = imported(tmp_path, OLD.replace(" --packing_samples", "").replace(" --flash_attn", ""))
    found.expect_complete()
    training = found.values["training"]
    assert (training["seq_len"], training["micro_batch_size"], training["global_batch_size"]) == (2048, 2, 256)
    assert "lengths" not in training
    assert found.values["framework_options"] == {"attn_implementation": "eager"}


@pytest.mark.parametrize(("text", "told"), [
    (OLD.replace("train_sft", "train_ppo"), "train_ppo: a trainer of OpenRLHF"),
    (OLD.replace("train_sft", "train_kd"), "distillation by OpenRLHF")])
def test_other_trainers_are_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    found = imported(tmp_path, text)
    assert [told in str(one) for one in found.refused] == [True]
    assert not found.unknown


def test_an_unknown_argument_is_told(tmp_path: Path) -> None:
    found = imported(tmp_path, with_more("--ds.zero_stag 3"))
    assert len(found.unknown) == 1
    assert "ds.zero_stag" in str(found.unknown[0])


def test_two_trainers_in_a_script_are_asked_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="starts 2 trainers"):
        imported(tmp_path, OLD + OLD.replace("train_sft", "train_dpo"))


def test_older_names_mean_names_of_today_once() -> None:
    assert len(set(OLDER.values())) == len(OLDER)
    assert not set(OLDER) & set(OLDER.values())


ARGUMENTS_OF_ALL: Final = """\
deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --ckpt.output_dir x --ckpt.save_steps 5 --ckpt.save_hf
--ckpt.disable_ds --logger.logging_steps 1 --eval.steps 3 --ckpt.path y --ckpt.max_num 3 --ckpt.max_mem 9
--ckpt.load_enable --ds.use_universal_ckpt --train.micro_batch_size 4 --train.batch_size 64
--model.gradient_checkpointing_enable --train.seed 1 --local_rank -1 --ds.zero_stage 3 --ds.param_dtype bf16
--ds.zpg 2 --ds.attn_implementation sdpa --ds.use_liger_kernel --ds.overlap_comm
--model.gradient_checkpointing_reentrant --data.disable_fast_tokenizer --data.dataloader_num_workers 2
--ds.tensor_parallel_size 1 --train.max_epochs 2 --model.aux_loss_coef 0 --model.model_name_or_path llama-3.2-3b
--model.pretrain_mode_enable --optim adam --muon.lr 0.02 --muon.momentum 0.9 --muon.ns_steps 5 --adam.lr 1e-5
--adam.betas 0.9 0.95 --adam.eps 1e-8 --adam.weight_decay 0.1 --lr_scheduler cosine --lr_warmup_ratio 0.1
--min_lr_ratio 0.1 --max_norm 0.5 --ds.ring_attn_size 1 --ds.ring_attn_head_stride 1 --ds.lora.rank 8
--ds.lora.alpha 16 --ds.lora.target_modules q_proj v_proj --ds.lora.dropout 0.1 --data.dataset d
--data.dataset_probs 1.0 --eval.dataset e --data.dataset_split train --eval.split test --data.max_samples 100
--data.multiturn --data.input_key q --data.output_key a --data.input_template T --data.apply_chat_template
--data.tokenizer_chat_template C --data.max_len 512 --logger.wandb.key k --logger.wandb.org o --logger.wandb.group g
--logger.wandb.project p --logger.wandb.run_name r --logger.tensorboard_dir t --use_ms
"""


REFUSED: Final = ("ds.adam_offload", "ds.deepcompile", "ds.experts_implementation", "ds.grad_accum_dtype",
                  "ds.load_in_4bit", "ds.packing_samples", "muon.nesterov", "muon.no_nesterov",
                  "train.full_determinism_enable")
"""Arguments that other tests set, and two that are each other's opposite."""


def test_older_arguments_mean_arguments_of_today() -> None:
    newer, older = (set(TRUTH["releases"][release]["arguments"]) for release in ("v0.11.0", "v0.8.9"))
    assert {name for name in older if OLDER.get(name, name) not in newer} == {"bf16", "flash_attn", "train_split"}
    assert {*OLDER} - older == {"attn_implementation", "param_dtype", "dataloader_num_workers"}  # of 0.9


def test_every_argument_of_the_trainer_is_in_one_list_that_is_printed(tmp_path: Path) -> None:
    text = " ".join(ARGUMENTS_OF_ALL.split())
    found = imported(tmp_path, text)
    found.expect_complete()
    document = command_of(text, str(tmp_path / "run.sh")).document
    keys = [(one.where, one.key) for one in Reader(document).all()]
    assert [*unaccounted(found, keys)] == []
    given = {word.removeprefix("--") for word in text.split() if word.startswith("--")} - {"num_gpus", "module"}
    assert given | set(REFUSED) == set(TRUTH["releases"]["v0.11.0"]["arguments"])
    assert not check(parse_scenario(found.document())).problems
