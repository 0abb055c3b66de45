"""Phi-3 and Phi-4: published counts, one matrix for three, rotation of a part, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 2,
                         "num_attention_heads": 8, "num_key_value_heads": 4}


def graph(preset: str = "phi-4", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    ("phi-3-mini-4k", 3_821_079_552), ("phi-4", 14_659_507_200), ("phi-4-mini", 3_836_021_760)])
def test_published_counts(preset: str, count: int) -> None:
    """As the model cards' safetensors say."""
    assert graph(preset).count() == count


def test_one_matrix_for_query_key_and_value() -> None:
    shapes = {t.name: t.shape for t in graph().tensors[1]}
    assert shapes["self_attn.qkv_proj.weight"] == (5120 + 2 * 1280, 5120)
    assert shapes["mlp.gate_up_proj.weight"] == (2 * 17920, 5120)


@pytest.mark.parametrize("changed", [
    {"partial_rotary_factor": 0.75}, {"rope_scaling": {"partial_rotary_factor": 0.75, "type": "longrope"}},
    {"rope_parameters": {"partial_rotary_factor": 0.75}}])
def test_a_part_of_each_head_is_rotated(changed: dict[str, Any]) -> None:
    made = build({**model_config("phi-4", None, "model"), **changed}, "hf")
    assert made.kinds[1].branches[0].block == Attention(5120, 40, 10, 128, rotary=True, rotated=96)
    assert graph("phi-3-mini-4k").kinds[1].branches[0].block == Attention(3072, 32, 32, 96, rotary=True, window=2047,
                                                                          rotated=96)


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_it_runs(framework: str, mesh: dict[str, int]) -> None:
    report = simulate(small.scenario(framework, mesh, model={"config": "phi-4", "overrides": SMALL}))
    assert report.status == "ok", report.problems
    parts = 2 if framework in ("fsdp2", "zero3") else 1
    assert sum(part.num_params for part in report.ranks[0].at_rest.values()) * parts == graph(**SMALL).count()


def test_adapters_go_by_module_names() -> None:
    """Rank 8 on the fused projection: one pair of matrices, where Llama has three."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["qkv_proj"]}}
    rest = small.plan_of("fsdp2", {}, model={"config": "phi-4", "overrides": SMALL}, **lora).at_rest()
    assert rest["adapters"].num_params == 2 * 8 * (256 + 256 + 2 * 128)


def test_fused_projections_get_adapters_without_being_named() -> None:
    """As Llama's do: qkv, o, gate with up, and down."""
    found = simulate(small.scenario("fsdp2", {}, model={"config": "phi-4", "overrides": SMALL}, method="lora"))
    assert found.adapters is not None
    assert set(found.adapters.adapted) == {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                                           "mlp.down_proj"}
    told = {row.what: row.value for row in found.assumptions}
    assert "qkv_proj" in told["training.lora.target_modules"]


@pytest.mark.parametrize(("changed", "told"), [
    ({"resid_pdrop": 0.1}, "resid_pdrop: dropout is not modelled yet"), ({"hidden_act": "gelu"}, "hidden_act"),
    ({"partial_rotary_factor": 2}, "partial_rotary_factor: expected a number from 0 to 1"),
    ({"partial_rotary_factor": 0.001}, "partial_rotary_factor: expected pairs of rotated dimensions, got 0 of a head"),
    ({"partial_rotary_factor": 0.01}, "partial_rotary_factor: expected pairs of rotated dimensions, got 1 of a head"),
    ({"partial_rotary_factor": 0}, "partial_rotary_factor: expected pairs of rotated dimensions, got 0 of a head")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build({**model_config("phi-4", None, "model"), **changed}, "hf")
