"""Granite 4: published counts, experts or none, positions, placement, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

TINY = "granite-4.0-h-tiny"
SMALL: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 128, "shared_intermediate_size": 192, "vocab_size": 512,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8,
    "num_experts_per_tok": 2, "mamba_n_heads": 8, "mamba_d_state": 32,
}


def graph(preset: str = TINY, **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    (TINY, 6_939_037_248), ("granite-4.0-h-small", 32_207_337_984), ("granite-4.0-h-micro", 3_191_396_096),
    ("granite-4.0-micro", 3_402_836_480)])
def test_published_counts(preset: str, count: int) -> None:
    """As their model cards say: 7B, 32B, 3B, 3B."""
    assert graph(preset).count() == count


def test_experts_with_a_shared_mlp_or_the_mlp_alone() -> None:
    sparse, dense = graph().kinds[1].branches[1], graph("granite-4.0-h-micro").kinds[1].branches[1]
    assert sparse.block == Moe(1536, 64, 6, 512, 1024, gated=True, router="topk_softmax")
    assert dense.block == Mlp(2048, 8192)
    assert (graph("granite-4.0-h-micro").count("mlp"), graph().count("mlp")) == (40 * 3 * 2048 * 8192, 0)
    assert graph().count("shared_experts") == 40 * 3 * 1536 * 1024


def test_positions_are_told_with_rope_alone() -> None:
    assert graph().kinds[2].branches[0].block == Attention(1536, 12, 4, 128)
    assert graph(position_embedding_type="rope").kinds[2].branches[0].block == Attention(1536, 12, 4, 128, rotary=True)
    assert (graph().architecture.buffers[0][1], graph("granite-4.0-micro").architecture.buffers[0][1]) == (0, 256)


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_it_is_placed(framework: str, mesh: dict[str, int]) -> None:
    made, parts = graph(**SMALL), 2 if framework in ("fsdp2", "zero3") else 1
    rest = small.plan_of(framework, mesh, model={"config": TINY, "overrides": SMALL}).at_rest()
    assert {name: part.num_params * parts for name, part in rest.items()} == {
        name: made.count(name) for name in small.components(made)}
    assert set(small.components(made)) == {"embedding", "norms", "router", "routed_experts", "shared_experts", "mamba",
                                      "attention"}


def test_experts_lie_on_their_axis() -> None:
    rest = small.plan_of("fsdp2", {"dp_shard": 2, "ep": 2}, model={"config": TINY, "overrides": SMALL}).at_rest()
    assert rest["routed_experts"].num_params * 2 == graph(**SMALL).count("routed_experts") == 6 * 8 * 3 * 256 * 128


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_it_runs(framework: str, mesh: dict[str, int], recompute: str) -> None:
    report = simulate(small.scenario(framework, mesh, model={"config": TINY, "overrides": SMALL},
                                     recompute=recompute))
    assert report.status == "ok", report.problems
    assert report.time is not None
    assert report.time.step_s > 0


def test_adapters_go_by_module_names() -> None:
    """Rank 8 on the shared MLP: gate and up are one matrix."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["input_linear", "output_linear"]}}
    rest = small.plan_of("fsdp2", {}, model={"config": TINY, "overrides": SMALL}, **lora).at_rest()
    assert rest["adapters"].num_params == 6 * 8 * (256 + 2 * 192 + 192 + 256)


def test_the_shared_mlp_gets_adapters_without_being_named() -> None:
    """The router, convolutions and grouped experts get none, nor out_proj, whose weight Mamba's kernel reads."""
    found = simulate(small.scenario("fsdp2", {}, model={"config": TINY, "overrides": SMALL}, method="lora"))
    assert found.adapters is not None
    names = {path.rpartition(".")[2] for path in found.adapters.adapted}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "input_linear", "output_linear"}


@pytest.mark.parametrize(("changed", "told"), [
    ({"attention_bias": True}, "attention_bias: not modelled yet"),
    ({"num_experts_per_tok": 65}, "expected at most 64 experts, got 65"),
    ({"layer_types": ["mamba"]}, "layer_types: expected 40 or more of mamba, linear_attention, attention"),
    ({"layer_types": ["moe"] * 40}, "layer_types: expected 40")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build({**model_config(TINY, None, "model"), **changed}, "hf")
