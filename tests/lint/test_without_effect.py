"""Each row of settings without effect is met by a recipe, and by no other value or case of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.lint.examples import BASES, with_lines
from simcore.lint.linting import lint
from simcore.lint.without_effect import IGNORED, Ignored
from simcore.recipes.answers import Answers

HF = ("model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
      "pretrained_model_name_or_path: Qwen/Qwen3-8B, force_hf: true, backend: {linear: te}}\n")
MOE = ("model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
       "pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B, attn_implementation: sdpa}\n")
PEFT = "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 8}\n"
SECOND = "fsdp_version: 2\nfsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, %s}\n"
LAUNCHED = ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
            "%s}\n")
FIRST = "fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, %s}\n"
ASYNC = "[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true\n"
# Row of the table, base, lines that it is about, lines that it is not about.
CASES = [
    (0, "accelerate", LAUNCHED % "fsdp_sharding_strategy: SHARD_GRAD_OP",
     LAUNCHED % "fsdp_sharding_strategy: FULL_SHARD"),
    (1, "axolotl", SECOND % "use_orig_params: true", SECOND % "use_orig_params:"),
    (2, "axolotl-fsdp1", FIRST % "reshard_after_forward: SHARD_GRAD_OP", FIRST % "sharding_strategy: SHARD_GRAD_OP"),
    (3, "axolotl", "fsdp_version: 2\n", SECOND % "offload_params: false"),
    (4, "accelerate", "deepspeed_config: {zero_stage: 3}\n", "deepspeed_config: {}\n"),
    (5, "accelerate", "distributed_type: 'NO'\nnum_processes: 4\n", "distributed_type: 'NO'\nnum_processes: 1\n"),
    (6, "trl", "fsdp_config: {version: 2}\n", "fsdp: full_shard\nfsdp_config: {version: 2}\n"),
    (7, "trl", "use_peft: true\nbnb_4bit_quant_type: nf4\n",
     "use_peft: true\ndtype: bfloat16\nload_in_4bit: true\nbnb_4bit_quant_type: nf4\n"),
    (8, "automodel", "parallelizer: {activation_checkpointing: true}\n",
     "distributed: {activation_checkpointing: true}\n"),
    (9, "automodel", HF, HF.replace("force_hf: true", "force_hf: false")),
    (10, "automodel", MOE, MOE.replace("attn_implementation: sdpa", "backend: {attn: sdpa}")),
    (11, "automodel", f"{PEFT}quantization: {{load_in_4bit: false, bnb_4bit_quant_type: nf4}}\n",
     f"{PEFT}quantization: {{load_in_4bit: true, bnb_4bit_quant_type: nf4}}\n"),
    (12, "megatron", "--recompute-method: uniform, --recompute-num-layers: 1",
     "--recompute-granularity: full, --recompute-method: uniform, --recompute-num-layers: 1"),
    (13, "megatron", "--num-experts: 8, --moe-token-dispatcher-type: alltoall, --moe-enable-deepep: true",
     "--num-experts: 8, --moe-token-dispatcher-type: flex, --moe-enable-deepep: true"),
    (15, "axolotl", SECOND % "sharding_strategy: SHARD_GRAD_OP", SECOND % "reshard_after_forward: true"),
    (14, "torchtitan", f"{ASYNC}[compile]\nenable = true\n",
     f"{ASYNC.replace('true', 'false')}[compile]\nenable = true\n"),
]


def found(folder: Path, base: str, lines: str, row: Ignored) -> list[str]:
    file = folder / BASES[base].name
    file.write_text(with_lines(base, lines), encoding="utf-8")
    gpus = None if base == "accelerate" else 8
    return [one.where for one in lint([str(file)], Answers.of_options(gpus, None, "dgx-h100")).findings
            if one.code == "option-without-effect" and row.message in one.message]


@pytest.mark.parametrize(("number", "base", "lines", "other"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_a_setting_without_effect_is_found(number: int, base: str, lines: str, other: str, tmp_path: Path) -> None:
    assert len(found(tmp_path, base, lines, IGNORED[number])) == 1
    assert found(tmp_path, base, other, IGNORED[number]) == []


def test_every_row_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(range(len(IGNORED)))
