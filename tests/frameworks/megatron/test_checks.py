"""Layouts that Megatron-Core and TransformerEngine refuse for a layer's mixer, and those that are not modelled."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import refused_with, small_model
from simcore.simulate import simulate

MAIN: dict[str, Any] = {"version": "main 2026-08-22"}
SIZES = {"head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 16,
         "linear_value_head_dim": 16}
LINEAR, FULL = "linear_attention", "full_attention"


def qwen(*types: str, **more: Any) -> dict[str, Any]:
    return small_model("qwen3.5-9b-text", **SIZES, layer_types=list(types or (LINEAR, FULL)),  # type: ignore[arg-type]
                       **more)


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"cp": 2}, {}, "Gated delta net does not support context parallelism"),
    ({"dp_shard": 2}, {"lengths": "packed"}, "GDN does not support packed sequence"),
    ({"tp": 8}, {}, "4 linear attention key heads must be divisible by tp 8"),
    ({"tp": 4}, {"model": qwen(num_key_value_heads=2)}, "2 query groups and tp 4 with a gate of attention's output"),
])
def test_core_refuses(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    refused_with("illegal", told, mesh, **{"model": qwen(), **given})


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"dp_shard": 2}, {"lengths": "packed"}, "gated delta nets of packed sequences"),
    ({"dp_shard": 2}, {"recompute": ["gdn_norm_out"]}, "recompute_modules gdn_norm_out"),
])
def test_what_main_has_besides_is_not_modelled_yet(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    refused_with("error", told, mesh, **{"model": qwen(), **MAIN, **given})


def test_ranks_of_a_sequence_share_heads_of_a_delta_net() -> None:
    refused_with("illegal", "self.linear_num_key_heads=4 must be a multiple of", {"tp": 2, "cp": 4}, model=qwen(),
                 **MAIN)
    assert simulate(small.scenario("megatron", {"tp": 2, "cp": 2}, model=qwen(), **MAIN)).status == "ok"


@pytest.mark.parametrize("version", [{}, MAIN])
def test_a_module_of_multi_token_prediction_repeats_no_delta_net(version: dict[str, Any]) -> None:
    refused_with("illegal", "Multi-Token Prediction (MTP) is not yet supported",
                 model=qwen(FULL, LINEAR, mtp_num_layers=1), **version)


OSS = small_model("gpt-oss-20b", head_dim=32, num_local_experts=8, num_experts_per_tok=2)
A2A = {"cp_comm_type": "a2a"}


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"cp": 2}, {}, "attention sinks under context parallelism by p2p"),
    ({"cp": 2}, {"options": {"cp_comm_type": "all_gather"}}, "attention sinks under context parallelism by all_gather"),
    ({"cp": 8}, {"options": A2A}, "4 heads a tp rank, cp 8"),
    ({"cp": 2}, {"options": A2A | {"attention_backend": "flash"}}, "attention sinks by flash-attn alone"),
    ({"dp_shard": 2}, {"options": {"fp8_dot_product_attention": True}, "precision": {"compute": "fp8"}},
     "attention sinks in 8 bits before Blackwell"),
])
def test_transformer_engine_has_no_kernel_for_these_sinks(mesh: dict[str, int], given: dict[str, Any],
                                                          told: str) -> None:
    refused_with("illegal", told, mesh, model=OSS, **given)


BOTH = {"cp_comm_type": "a2a+p2p"}


@pytest.mark.parametrize(("options", "told"), [
    (BOTH, "--hierarchical-context-parallel-sizes must be set when a2a+p2p is used"),
    (BOTH | {"hierarchical_context_parallel_sizes": [2, 4]}, "2 x 4 is not cp, 4"),
    (BOTH | {"hierarchical_context_parallel_sizes": [4]}, "two sizes"),
    (BOTH | {"hierarchical_context_parallel_sizes": [2, "2"]}, "two sizes"),
])
def test_groups_of_groups_are_of_two_sizes(options: dict[str, Any], told: str) -> None:
    refused_with("illegal", told, {"cp": 4}, options=options)


def test_groups_of_groups_without_their_exchange_change_nothing() -> None:
    report = simulate(small.scenario("megatron", {"cp": 4}, options={"hierarchical_context_parallel_sizes": [2, 2]}))
    assert report.status == "error"
    assert "changes nothing without cp_comm_type: a2a+p2p" in report.problems[0].message


def test_heads_are_shared_out_between_neighbours() -> None:
    """Two heads of keys a rank of tp: two ranks have one each, four none."""
    model = small_model("llama-3.2-1b", num_attention_heads=8, num_key_value_heads=4)
    given: dict[str, Any] = {"model": model, "options": BOTH | {"hierarchical_context_parallel_sizes": [4, 1]}}
    refused_with("illegal", "2 heads a tp rank, which 4 ranks cannot", {"cp": 4, "tp": 2}, **given)
    given["options"] = BOTH | {"hierarchical_context_parallel_sizes": [2, 2]}
    report = simulate(small.scenario("megatron", {"cp": 4, "tp": 2}, **given))
    assert report.status == "ok", report.problems
    refused_with("error", "attention in 8 bits under a2a+p2p", {"cp": 4}, precision={"compute": "fp8"},
                 **given | {"options": given["options"] | {"fp8_dot_product_attention": True}})
