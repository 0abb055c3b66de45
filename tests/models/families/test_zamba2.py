"""Zamba2: published counts, what layers share, copies under FSDP2, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import InputError
from simcore.models.graph import ModelGraph, build, model_config
from simcore.models.network import Edge
from simcore.simulate import check, simulate

SHARED: dict[str, Any] = json.loads(
    (ROOT / "tests/truth" / "models" / "shared-torch-2.13.0.json").read_text(encoding="utf-8"))


def graph(preset: str = "zamba2-2.7b", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    ("zamba2-1.2b", 1_215_064_704), ("zamba2-2.7b", 2_662_214_560), ("zamba2-7b", 7_356_749_648)])
def test_counts(preset: str, count: int) -> None:
    assert graph(preset).count() == count


def test_two_transformers_are_used_in_turn() -> None:
    """The first layer of each holds all its adapters; every hybrid layer has a projection of its own."""
    made = graph()
    hybrids = [made.kinds[layer.kind].shared for layer in made.layers if made.kinds[layer.kind].shared]
    assert [block.places[0] for block in hybrids if block] == [i % 2 for i in range(9)]
    first, second, *others = (layer.index for layer in made.layers if made.kinds[layer.kind].shared)
    assert made.ends(Edge.SHARED) == tuple(((first, second)[i % 2], layer) for i, layer in enumerate(others))
    assert made.ends(Edge.RESIDUAL) == tuple((0, layer) for layer in (first, second, *others))
    assert [block.places for block in hybrids[:2] if block] == [(0, 2, 4, 6, 8), (1, 3, 5, 7)]
    wide, ffn = 2 * 2560, 10240
    assert made.count("attention") == 2 * (3 * wide * wide + wide * 2560)
    assert made.count("mlp") == 2 * 3 * 2560 * ffn + 9 * 128 * (2560 + 2 * ffn) + 9 * 2560 * 2560


def test_without_a_list_the_layers_are_the_classes_own() -> None:
    fields = {k: v for k, v in model_config("zamba2-2.7b", None, "model").items() if k != "layers_block_type"}
    assert build(fields, "hf").architecture == graph().architecture
    with pytest.raises(InputError, match="num_hidden_layers: expected at most 54 without layers_block_type"):
        build({**fields, "num_hidden_layers": 55}, "hf")


def of(case: dict[str, Any]) -> dict[str, Any]:
    return {"config": case["preset"], "overrides": case["overrides"]}


@pytest.mark.parametrize("name", SHARED)
def test_fully_shard_takes_no_weights_that_layers_share(name: str) -> None:
    """Every `fully_shard` makes parameters of its own, and the root does not take them."""
    case = SHARED[name]
    assert case["sharded"] > case["parameters"]
    report = check(small.scenario("fsdp2", {"dp_shard": 2}, model=of(case)))
    assert report.status == "illegal"
    said = case["raises"].split(". ")[0]
    assert "is shared with a parameter already managed by another FSDP group" in said
    assert report.problems[0].message.startswith(said)


def test_layers_that_share_nothing_are_taken() -> None:
    """One hybrid layer has its transformer to itself."""
    alone = of(SHARED["one-block"])
    alone["overrides"] = alone["overrides"] | {"num_hidden_layers": 10}
    assert check(small.scenario("fsdp2", {"dp_shard": 2}, model=alone), rules_only=True).status == "ok"


@pytest.mark.parametrize(("framework", "mesh"), [
    ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}), ("zero3", {"dp_shard": 2})])
def test_others_hold_it_once(framework: str, mesh: dict[str, int]) -> None:
    case, parts = SHARED["two-blocks"], 2 if framework == "zero3" else 1
    rest = small.plan_of(framework, mesh, model=of(case)).at_rest()
    assert sum(part.num_params for part in rest.values()) * parts == case["parameters"]
    assert set(rest) == {"embedding", "mamba", "norms", "mlp", "attention"}


def test_every_layer_gets_adapters_of_its_own() -> None:
    """Modules are not shared, weights are: PEFT finds a query projection in each of five hybrid layers."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["q_proj"]}}
    rest = small.plan_of("ddp", {}, model=of(SHARED["two-blocks"]), **lora).at_rest()
    assert rest["adapters"].num_params == 5 * 8 * (512 + 512)


def test_its_layers_are_refused_by_name() -> None:
    report = simulate(small.scenario("ddp", {"dp_replicate": 2}, model=of(SHARED["one-block"])))
    assert "not yet: a transformer that layers share (zamba2, hybrid)" in report.problems[0].message


@pytest.mark.parametrize(("changed", "told"), [
    ({"add_bias_linear": True}, "add_bias_linear: not modelled yet"), ({"hidden_act": "silu"}, "hidden_act"),
    ({"n_mamba_heads": 7}, "n_mamba_heads: expected a divisor of 5120 and a multiple of 1 groups, got 7"),
    ({"num_key_value_heads": 5}, "num_key_value_heads: expected a divisor of 32, got 5"),
    ({"layers_block_type": ["mamba"]}, "layers_block_type: expected 54 or more of")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
