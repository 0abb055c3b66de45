"""GLM-5 under Megatron: placed on main alone, with what core refuses of attention that sees chosen keys."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.results.report import Report
from simcore.simulate import place, simulate

SMALL: dict[str, Any] = {
    "hidden_size": 128, "vocab_size": 1024, "num_hidden_layers": 4, "intermediate_size": 176, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 56,
    "first_k_dense_replace": 1, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 8}
MAIN = "main 2026-08-22"


def placed(mesh: dict[str, int], fields: dict[str, Any] | None = None, version: str = MAIN, **more: Any) -> Report:
    return place(small.scenario("megatron", mesh, model={"config": "glm-5", "overrides": SMALL | (fields or {})},
                                version=version, **more))


def options_of(report: Report) -> dict[str, str]:
    return {one.what: one.value for one in report.assumptions if one.kind == "default"}


@pytest.mark.parametrize(("mesh", "more", "told"), [
    ({"dp_shard": 2}, {"version": "auto"}, "Bridge 0.3.1 has no bridge for glm_moe_dsa"),
    ({"tp": 2, "etp": 1}, {"sequence_parallel": False}, "MoE with tensor parallelism"),
    ({"tp": 2}, {"sequence_parallel": False, "fields": {"first_k_dense_replace": 4}}, "AbsorbedMLA requires"),
    ({"dp_shard": 2}, {"options": {"apply_rope_fusion": True}}, "RoPE fusion is not supported for DSAttention"),
    ({"cp": 2}, {"options": {"cp_comm_type": "p2p"}}, "cp_comm_type=allgather only"),
    ({"dp_shard": 2}, {"options": {"transformer_impl": "local"}}, "only supports transformer engine implementation"),
    ({"pp": 2}, {"fields": {"index_topk_freq": 3, "index_skip_topk_offset": 1}}, "model.layers.2 reuses top-k indices"),
    ({"pp": 2}, {"options": {"pipeline_model_parallel_layout": "Ett||t|tmL"}, "global_batch_size": 2,
                 "fields": {"mtp_num_layers": 1}}, "needs a decoder layer"),
    ({"dp_shard": 2}, {"fields": {"indexer_types": ["full", "full", "shared", "full"]}}, "reads index_topk_freq"),
])
def test_what_core_refuses(mesh: dict[str, int], more: dict[str, Any], told: str) -> None:
    report = placed(mesh, **more)
    assert report.status == "illegal", report.problems
    assert told in report.problems[0].message
    assert report.problems[0].rule


@pytest.mark.parametrize(("mesh", "more"), [
    ({"tp": 2, "etp": 1}, {}), ({"cp": 2}, {}), ({"cp": 2}, {"options": {"cp_comm_type": "all_gather"}}),
    ({"pp": 2}, {"fields": {"index_topk_freq": 2, "index_skip_topk_offset": 1}}),
    ({"pp": 2}, {"options": {"pipeline_model_parallel_layout": "Ett||tt|L"}, "global_batch_size": 2}),
    ({"dp_shard": 2}, {"options": {"dsa_kernel_backend": "cudnn"}}),
])
def test_what_is_placed(mesh: dict[str, int], more: dict[str, Any]) -> None:
    assert placed(mesh, **more).problems == ()


def test_defaults_are_those_of_its_bridge() -> None:
    found = options_of(placed({"cp": 2}))
    said = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep",
            "cp_comm_type": "all_gather"}
    assert {name: found[f"framework_options.{name}"] for name in said} == said


def test_an_indexer_is_whole_on_each_tp_rank_and_its_states_are_not() -> None:
    one, two = (placed(mesh).ranks[0].at_rest["attention"] for mesh in ({"dp_shard": 1}, {"dp_shard": 2}))
    assert one.params_bytes == two.params_bytes
    assert one.optimizer_bytes > two.optimizer_bytes


@pytest.mark.parametrize(("mesh", "layout"), [({"dp_shard": 2}, None), ({"pp": 2}, "Ett||t|tL")])
def test_no_step_is_simulated(mesh: dict[str, int], layout: str | None) -> None:
    report = simulate(small.scenario("megatron", mesh, model={"config": "glm-5", "overrides": SMALL}, version=MAIN,
                                     options={"pipeline_model_parallel_layout": layout}, global_batch_size=4))
    assert report.status == "error"
    assert report.problems[0].message.startswith("not yet: an indexer of keys")


def test_kernels_of_an_indexer_are_refused_without_one() -> None:
    report = place(small.scenario("megatron", {"dp_shard": 2}, options={"dsa_kernel_backend": "cudnn"}, version=MAIN))
    assert report.status == "illegal"
    assert "no indexer of keys" in report.problems[0].message


@pytest.mark.parametrize("framework", ["megatron", "megatron_fsdp"])
def test_deepseek_v4_is_refused_by_cores_rule(framework: str) -> None:
    report = place(small.scenario(framework, {"dp_shard": 2}, model="deepseek-v4-flash", version=MAIN))
    assert report.status == "illegal"
    assert "Invalid experimental attention variant: dsv4_hybrid" in report.problems[0].message
    assert "experimental_attention_variant_module_specs.py" in report.problems[0].rule
