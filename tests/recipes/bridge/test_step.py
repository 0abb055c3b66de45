"""Layers in bf16 and adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages, value


def test_layers_at_the_start_are_those_of_the_recipe(tmp_path: Path) -> None:
    """perf_recipes/gpt_oss: none, where Megatron's own number is one."""
    found = imported(tmp_path, "gpt_oss_20b_pretrain_64gpu_b300_nvfp4_config")
    options = value(found, "framework_options")
    assert (options["first_last_layers_bf16"], options["num_layers_at_start_in_bf16"]) == (True, 0)


def test_adapters_of_experts_of_another_rank_are_refused(tmp_path: Path) -> None:
    """peft/lora.py:129."""
    found = imported(tmp_path, "qwen3_30b_a3b_peft_4gpu_h100_bf16_config peft.normalize_moe_lora=true")
    assert "peft.normalize_moe_lora: adapters of experts whose rank" in messages(found)


def test_layers_that_no_recipe_of_fp8_keeps_in_bf16_are_not(tmp_path: Path) -> None:
    """The simulation keeps an end in bf16 with scaling by tensors unless it is told not to (Bridge's own preset)."""
    found = imported(tmp_path, "llama3_8b_pretrain_8gpu_h100_fp8cs_config")
    assert value(found, "framework_options.fp8_recipe") == "tensorwise"
    assert value(found, "framework_options.first_last_layers_bf16") is False
    narrow = imported(tmp_path, "deepseek_v3_pretrain_256gpu_b200_nvfp4_config")
    assert value(narrow, "framework_options.fp4_param_gather") is False


@pytest.mark.parametrize(("name", "on"), [
    ("deepseek_v3_pretrain_256gpu_b300_fp8mx_config", True),
    ("deepseek_v3_pretrain_256gpu_b300_fp8mx_config model.fp8_output_proj=false", None)])
def test_a_head_in_8_bits_is_an_option(tmp_path: Path, name: str, on: bool | None) -> None:
    """Megatron-Bridge 067f987d perf_recipes/deepseek/b300/deepseek_v3.py:154."""
    assert value(imported(tmp_path, name), "framework_options.fp8_output_proj") is on


def test_formats_of_moments_may_be_said_as_torch_says_them(tmp_path: Path) -> None:
    """Main 067f987d training/utils/omegaconf_utils.py:499."""
    said = "optimizer.exp_avg_dtype=torch.bfloat16 optimizer.exp_avg_sq_dtype=torch.bfloat16"
    found = imported(tmp_path, f"deepseek_v3_pretrain_256gpu_b200_nvfp4_config {said}")
    assert value(found, "training.optimizer.moments") == "bf16"
