"""Scenarios become axolotl recipes, which are read back as they are; what none says is refused by its key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert
from simcore.recipes.converted import Converted

FULL = """\
name: mine
model: qwen3-8b
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 8, dp_replicate: 2}
training:
  seq_len: 768
  micro_batch_size: 3
  global_batch_size: 96
  recompute: full
  precision: {compute: bf16, params: bf16, grad_reduce: bf16}
  optimizer: {name: adamw, implementation: fused}
  offload: {params: host, gradients: host, optimizer: host}
framework_options: {attn_implementation: flash_attention_2, reshard_after_forward: false, sync_gradients: last}
"""
QLORA = """\
name: mine
model: qwen3-8b
framework: ddp
topology: dgx-h100
mesh: {dp_replicate: 1}
training:
  method: qlora
  seq_len: 2304
  packed_length: 768
  lengths: packed
  micro_batch_size: 1
  global_batch_size: 2
  recompute: full
  precision: {compute: bf16, params: bf16}
  lora: {rank: 24, alpha: 48, dropout: 0.05, dtype: fp32, target_modules: [q_proj, v_proj]}
  quantization: {double_quant: false}
  loss: liger
  optimizer: {name: adamw, implementation: bitsandbytes, moments: int8, paged: true}
framework_options: {autocast: true}
"""


def scenario(text: str, **settings: Any) -> Scenario:
    document = parse_document(text, "mine.yaml")
    for key, value in settings.items():
        document = document.with_value(tuple(key.split("__")), value, "")
    return parse_scenario(document)


def written(text: str, **settings: Any) -> Converted:
    made = convert(scenario(text, **settings), "axolotl")
    made.expect_complete()
    return made


def test_a_recipe_of_fsdp_2() -> None:
    made = written(FULL)
    assert made.text == """\
base_model: Qwen/Qwen3-8B
datasets:  # yours
- path: your/dataset
  type: alpaca
sequence_len: 768
pad_to_sequence_len: true
micro_batch_size: 3
gradient_accumulation_steps: 2
learning_rate: 0.0002  # yours
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
attn_implementation: flash_attention_2
fsdp_version: 2
fsdp_config:
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  reshard_after_forward: false
  offload_params: true
dp_replicate_size: 2
dp_shard_size: 8
"""
    line = "axolotl train mine.yaml --launcher torchrun -- --nnodes=2 --nproc-per-node=8\n"
    assert made.launch == f"export PYTORCH_ALLOC_CONF=expandable_segments:False\n{line}"
    grown = written(FULL, environment__expandable_segments=True)
    assert grown.launch == f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n{line}"


def test_a_recipe_of_qlora_in_packs() -> None:
    """`utils/schemas/config.py` switches fused layers of adapters on unless told."""
    text = written(QLORA).text
    assert "plugins:\n- axolotl.integrations.liger.LigerPlugin\nliger_fused_linear_cross_entropy: true\n" in text
    assert "sequence_len: 768\nsample_packing: true\nmicro_batch_size: 3\ngradient_accumulation_steps: 2\n" in text
    assert text.endswith("""\
optimizer: paged_adamw_8bit
bf16: true
adapter: qlora
load_in_4bit: true
bnb_config_kwargs:
  bnb_4bit_use_double_quant: false
lora_r: 24
lora_alpha: 48
lora_dropout: 0.05
lora_mlp_kernel: false  # on unless told; PEFT's layers are simulated
lora_qkv_kernel: false
lora_o_kernel: false
lora_embedding_kernel: false
lora_target_modules:
- q_proj
- v_proj
gradient_checkpointing: true
""")


def test_a_base_in_8_bits_has_lora_for_its_adapter() -> None:
    text = written(QLORA, training__quantization={"format": "int8"}).text
    assert "adapter: lora\nload_in_8bit: true\n" in text


def test_rows_of_their_own_are_real_batches() -> None:
    text = written(QLORA, training__packed_length=None, training__micro_batch_size=2).text
    assert "sequence_len: 2304\nsample_packing: true\nmultipack_real_batches: true\nmicro_batch_size: 2\n" in text


def test_deepspeed_is_a_file_beside() -> None:
    made = written(FULL, framework="zero2", mesh={"dp_shard": 8}, training__offload={"optimizer": "host"},
                   training__precision={"compute": "bf16"}, training__optimizer={"name": "adamw"},
                   framework_options={"attn_implementation": "flash_attention_2"})
    assert made.text.endswith("deepspeed: mine-zero.json\n")
    assert json.loads(made.beside["mine-zero.json"])["zero_optimization"] == {
        "stage": 2, "offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize(("text", "settings", "told"), [
    (FULL, {"training__precision__params": "fp32"}, "training.precision.params: 'fp32'"),
    (FULL, {"framework_options__sync_gradients": "every"}, "framework_options.sync_gradients"),
    (QLORA, {"training__lora__dtype": "bf16"}, "training.lora.dtype"),
    (QLORA, {"training__offload": {"activations": "host"}}, "it takes the place of recomputing"),
    (QLORA, {"training__packed_length": 700}, "a row is a whole number of longest samples"),
])
def test_what_no_recipe_says_is_refused_by_its_key(text: str, settings: dict[str, Any], told: str) -> None:
    assert told in "; ".join(one.message for one in convert(scenario(text, **settings), "axolotl").refused)


@pytest.mark.parametrize(("settings", "told"), [
    ({}, ["bf16: true\n"]), ({"framework_options__autocast": False}, ["bf16: full\n"]),
    ({"framework_options": {}, "training__lora__dtype": "auto"},
     ["bf16: true\n", "peft_autocast_adapter_dtype: false"])])
def test_formats_of_adapters_are_what_the_trainer_casts(settings: dict[str, Any], told: list[str]) -> None:
    text = QLORA.replace("method: qlora", "method: lora").replace("  quantization: {double_quant: false}\n", "")
    made = written(text, **settings)
    assert all(one in made.text for one in told)
