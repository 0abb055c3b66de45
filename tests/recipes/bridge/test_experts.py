"""Dispatchers and rows of experts."""

from __future__ import annotations

from pathlib import Path

from recipes.bridge.test_recipe import imported
from recipes.looked_into import value
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check


def test_rows_of_experts_are_padded_by_the_switchs_older_name_too(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 transformer_config.py:2641, :2649."""
    name = "gpt_oss_20b_sft_8gpu_h100_fp8cs_config"
    found = imported(tmp_path, name)
    assert value(found, "framework_options.moe_router_padding_for_quantization") is True
    assert value(found, "framework_options.moe_token_dispatcher_type") == "alltoall"
    assert check(parse_scenario(found.document())).problems == ()
    wrong = imported(tmp_path, f"{name} mixed_precision=bf16_mixed").wrong
    assert [one.message.partition(" (")[0] for one in wrong] == [
        "fp8/fp4 must be specified when moe_router_padding_for_quantization is True"]
