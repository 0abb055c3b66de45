"""Scenarios of TRL's trainer become its recipes, which are read back as they are; what it cannot say is refused."""

from __future__ import annotations

from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.document import Document, parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert
from simcore.recipes.converted import Converted

LORA: dict[str, Any] = {"rank": 8, "alpha": 12.5, "dropout": 0.1, "dtype": "fp32"}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def of_folder(name: str, **settings: Any) -> Scenario:
    """A scenario of `scenarios/trainers` without its sweep, with other values by key (`training__lora`)."""
    path = ROOT / f"scenarios/trainers/{name}.yaml"
    document: Document = parse_document(path.read_text(encoding="utf-8"), str(path)).with_value(("sweep",), None, "")
    for key, value in settings.items():
        document = document.with_value(tuple(key.split("__")), value, "")
    return parse_scenario(document)


def written(name: str, **settings: Any) -> Converted:
    made = convert(of_folder(name, **settings), "trl")
    made.expect_complete()
    return made


def refused(name: str, **settings: Any) -> str:
    return "; ".join(one.message for one in convert(of_folder(name, **settings), "trl").refused)


def test_a_recipe_is_what_a_person_would_write() -> None:
    made = written("trl-lora", training__lora=LORA | {"target_modules": LINEAR}, mesh__dp_replicate=4)
    assert made.text == """\
model_name_or_path: meta-llama/Llama-3.2-3B
dtype: bfloat16
bf16: true
dataset_name: your/dataset  # yours
max_length: 1024
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
gradient_checkpointing: true
loss_type: nll
optim: adamw_torch_fused  # its learning rate is yours
use_peft: true
lora_r: 8
lora_alpha: 12.5
lora_dropout: 0.1
lora_target_modules: all-linear
"""
    assert made.launch == "torchrun --nproc-per-node 4 -m trl.scripts.sft --config trainers-trl-lora.yaml\n"


@pytest.mark.parametrize(("changed", "mixed"), [
    ({}, "bf16: true\n"), ({"framework_options__autocast": False}, "bf16: false  # no"),
    ({"framework_options": {}}, "bf16: false  # no"),
    ({"training__precision": {"params": "fp32"}, "training__loss": "hf"}, "bf16: true\n")])
def test_mixed_precision_is_what_casts_adapters(changed: dict[str, Any], mixed: str) -> None:
    """The trainer's forward under autocast; without it adapters in fp32 compute in fp32."""
    made = convert(of_folder("trl-lora", **changed), "trl")
    assert mixed in made.text
    assert "autocast" not in " ".join(problem.message for problem in made.refused)


def test_packs_are_samples_and_rows() -> None:
    made = written("trl-ddp", training__lengths="packed", training__seq_len=4096, training__packed_length=1024,
                   training__micro_batch_size=1, training__global_batch_size=16)
    told = "max_length: 1024\npacking: true\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2\n"
    assert told in made.text


def test_fsdp_in_the_trainers_words() -> None:
    """transformers 5.23.0 `training_args.py` passes `cpu_offload` on, and no `offload_params`."""
    host = {"params": "host", "gradients": "host", "optimizer": "host"}
    assert written("trainer-fsdp2", training__offload=host).text.endswith("""\
fsdp: true
fsdp_config:
  version: 2
  reshard_after_forward: true
  cpu_offload: true
""")


def test_parameters_in_16_bits_at_rest_are_no_mixed_precision() -> None:
    made = written("trainer-fsdp2", training__precision={"params": "bf16", "grad_reduce": "bf16"})
    assert "dtype: bfloat16\nbf16: false  # no mixed precision" in made.text


def test_deepspeed_has_the_trainers_numbers() -> None:
    made = written("trl-deepspeed", training__offload={"optimizer": "host"},
                   framework_options={"reduce_bucket_size": 200000000,
                                      "offload_optimizer": {"device": "cpu", "pin_memory": True}})
    assert made.text.endswith("""\
deepspeed:
  train_micro_batch_size_per_gpu: 8
  gradient_accumulation_steps: 1
  bf16:
    enabled: true
  zero_optimization:
    stage: 2
    reduce_bucket_size: 200000000
    offload_optimizer:
      device: cpu
      pin_memory: true
""")


@pytest.mark.parametrize(("name", "settings", "told"), [
    ("trl-lora", {"training__lora": LORA | {"target_modules": ["q_proj"]}}, "q_proj alone"),
    ("trl-ddp", {"training__loss": "liger"}, "makes no whole logits"),
    ("trl-ddp", {"training__optimizer": {"name": "sgd", "momentum": 0.9}}, "training.optimizer.momentum"),
    ("trainer-fsdp2", {"mesh": {"dp_shard": 4, "dp_replicate": 2}}, "mesh.dp_replicate"),
    ("unsloth-lora", {}, "training.offload.activations: no recipe of trl says this"),
])
def test_what_no_recipe_says_is_refused_by_its_key(name: str, settings: dict[str, Any], told: str) -> None:
    assert told in refused(name, **settings)
