"""Experts that ranks share under FSDP2, by transformers' own plans: what is cut how, what is refused."""

from __future__ import annotations

from typing import Any

import small
from simcore.simulate import simulate
from simcore.simulation.simulation import placed_simulation

SPLIT = {"dp_shard": 2, "tp": 2}
SIZES: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
                         "num_hidden_layers": 2}
QWEN2 = {"config": "qwen1.5-moe-a2.7b", "overrides": {
    **SIZES, "num_experts": 4, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
    "intermediate_size": 192}}
MIXTRAL = {**SIZES, "head_dim": 32, "num_local_experts": 4}
GLM = {"config": "glm-4.5-air", "overrides": {**SIZES, "head_dim": 32, "num_hidden_layers": 1,
                                               "first_k_dense_replace": 0, "use_qk_norm": True}}


EXCHANGE = {"experts": "ep_dispatch_experts"}


def _told(mesh: dict[str, int], model: Any, options: dict[str, Any] | None = None) -> str:
    report = simulate(small.scenario("fsdp2", mesh, model=model, options=options))
    return "; ".join(str(problem.message) for problem in report.problems)


def test_experts_are_cut_by_width_routers_and_what_no_plan_names_are_whole() -> None:
    """transformers 5.23 models/qwen2_moe/configuration_qwen2_moe.py base_model_tp_plan has no shared_expert."""
    parts = placed_simulation(small.scenario("fsdp2", SPLIT, model=QWEN2), rank=0)
    shapes = {placed.spec.name: placed.used_shape for kind in parts.plans[0].kinds for placed in kind}
    found = {name: shapes[f"mlp.{name}"] for name in ("experts.gate_up_proj", "experts.down_proj", "gate.weight",
                                                      "shared_expert.up_proj.weight", "shared_expert_gate.weight")}
    assert found == {"experts.gate_up_proj": (4, 64, 128), "experts.down_proj": (4, 128, 32), "gate.weight": (4, 128),
                     "shared_expert.up_proj.weight": (96, 128), "shared_expert_gate.weight": (1, 128)}


def test_what_plans_of_mixtures_do_not_do() -> None:
    refused: dict[str, tuple[Any, ...]] = {
        "norms of query and key that no rule of the plan sums": (SPLIT, GLM),
        "experts of width 102 on 4 ranks, unevenly": ({"dp_shard": 2, "tp": 4}, {
            "config": "mixtral-8x7b", "overrides": {**MIXTRAL, "num_key_value_heads": 4, "intermediate_size": 102}}),
        "rows of 51 entries in bf16": (SPLIT, {"config": "mixtral-8x7b", "overrides": {
            **MIXTRAL, "intermediate_size": 102}}),
        "beside tensor parallelism (served with experts: ep_dispatch_experts)": ({"dp_shard": 2, "tp": 2, "ep": 2}, {
            "config": "mixtral-8x7b", "overrides": {**MIXTRAL, "intermediate_size": 192}}, {"experts": "fully_shard"}),
    }
    assert {text: told for text, case in refused.items() if text not in (told := _told(*case))} == {}


def test_what_transformers_own_exchange_does_not_do() -> None:
    mixtral = {"config": "mixtral-8x7b", "overrides": {**MIXTRAL, "num_local_experts": 8}}
    refused = {
        "`ep_size` must divide `fsdp_size * tp_size`: 4, 2 x 1": ({"dp_shard": 2, "dp_replicate": 2, "ep": 4}, mixtral),
        "`ep_size` must be a multiple of `tp_size`: 2, 4": ({"dp_shard": 2, "tp": 4, "ep": 2}, {
            "config": "mixtral-8x7b", "overrides": {**MIXTRAL, "num_key_value_heads": 4, "num_local_experts": 8}}),
        "where each rank has all experts": ({"dp_shard": 2}, mixtral),
        "ep_dispatch_experts of gpt_oss": ({"dp_shard": 2, "ep": 2}, "gpt-oss-20b"),
        "Combining FSDP with pipeline parallelism is not supported yet": ({"dp_shard": 2, "pp": 2}, mixtral),
    }
    assert {text: told for text, case in refused.items() if text not in (told := _told(*case, EXCHANGE))} == {}


def test_experts_on_one_rank_are_exchanged_by_nothing() -> None:
    """An option that changes nothing is told, whatever its value, with experts cut by their width too."""
    mixtral = {"config": "mixtral-8x7b", "overrides": {**MIXTRAL, "intermediate_size": 192}}
    told = {way: {_told(mesh, mixtral, {"experts": way}) for mesh in ({"dp_shard": 4}, SPLIT)}
            for way in ("fully_shard", "ignored", "ep_dispatch_experts")}
    assert set().union(*told.values()) == {
        "experts: changes nothing where each rank has all experts (mesh.ep: 1)"}


def test_transformers_own_exchange_is_the_default_where_it_is_measured() -> None:
    """transformers 5.23 distributed/mixin.py:253: ep_size > 1 takes base_model_ep_plan; others' is a named stand-in."""
    mesh, sizes = {"dp_shard": 4, "ep": 2}, {**MIXTRAL, "num_local_experts": 8}
    mixtral = {"config": "mixtral-8x7b", "overrides": sizes}
    left, asked, stand_in = (simulate(small.scenario("fsdp2", mesh, model=mixtral, options=options))
                             for options in ({}, EXCHANGE, {"experts": "fully_shard"}))
    assert left.time == asked.time != stand_in.time
    assert ("framework_options.experts", "ep_dispatch_experts") in {(one.what, one.value) for one in left.assumptions}
    hybrid = simulate(small.scenario("fsdp2", mesh))
    noted = next(one for one in hybrid.assumptions if one.what == "framework_options.experts")
    assert noted.value == "fully_shard"
    assert "a stand-in" in noted.source


def test_experts_of_copies_are_cut_over_ranks_of_one_copy() -> None:
    """transformers 5.23 distributed/utils.py TransformersDeviceMesh: (dp_replicate, efsdp, ep)."""
    given = {"config": "mixtral-8x7b", "overrides": {**MIXTRAL, "num_local_experts": 8}}
    parts = placed_simulation(small.scenario("fsdp2", {"dp_replicate": 2, "dp_shard": 4, "ep": 2}, model=given,
                                             options=EXCHANGE), rank=0)
    placed = next(placed for kind in parts.plans[0].kinds for placed in kind if placed.spec.name.endswith("down_proj"))
    assert (placed.used_shape[0], placed.used // placed.padded) == (4, 2)
