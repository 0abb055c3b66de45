"""Sizes of a model by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages, value
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check


@pytest.mark.parametrize(("override", "field", "expected"), [
    ("model.num_moe_experts=64", "num_experts", 64), ("model.moe_router_topk=4", "num_experts_per_tok", 4),
    ("model.moe_ffn_hidden_size=512", "moe_intermediate_size", 512),
    ("model.moe_router_topk=8", "num_experts_per_tok", None),
    ("model.attention_dropout=0.0", "attention_dropout", None), ("model.hidden_dropout=0.0", "hidden_dropout", None)])
def test_sizes_of_a_model_by_its_name_may_be_overridden(tmp_path: Path, override: str, field: str,
                                                        expected: Any) -> None:
    found = imported(tmp_path, f"qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config {override}")
    assert messages(found) == ""
    assert value(found, f"model.overrides.{field}") == expected
    assert check(parse_scenario(found.document())).problems == ()


@pytest.mark.parametrize(("name", "turned"), [
    ("qwen3_8b_pretrain_16gpu_h100_bf16_config", False), ("qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config", True),
    ("glm45_air_106b_sft_32gpu_h100_bf16_config", False), ("llama3_8b_peft_1gpu_h100_bf16_config", None)])
def test_rotary_embeddings_are_one_kernel_where_recipe_or_converter_says_so(tmp_path: Path, name: str,
                                                                          turned: bool | None) -> None:
    """Megatron-LM d98e8a64 transformer_config.py:513: False, which Llama's converter changes, and Qwen's does not."""
    assert value(imported(tmp_path, name), "framework_options.apply_rope_fusion") is turned
