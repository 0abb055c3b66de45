"""MiMo-V2-Flash in Automodel as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from automodel_experts import expect_gradients_alone
from checkout import ROOT
from eventlog import grouped
from operators.automodel.dense_experts import changes, layer_of
from simcore.models.graph import ModelGraph, build, model_config

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-mimo-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


WORDS = {0: "full_attention", 1: "sliding_attention"}


def in_words_of_transformers(told: dict[str, Any]) -> dict[str, Any]:
    """Fields as transformers names them: layers with a window have twice the heads of keys, and the same of queries."""
    kept = {name: value for name, value in told.items() if not name.startswith("swa_") and name not in (
        "hybrid_layer_pattern", "moe_layer_freq")}
    return kept | {"layer_types": [WORDS[one] for one in told["hybrid_layer_pattern"]],
                   "mlp_layer_types": [("dense", "sparse")[one] for one in told["moe_layer_freq"]]}


def graph(**overrides: Any) -> ModelGraph:
    fields = in_words_of_transformers(STORED["shape"] | overrides)
    return build(model_config("mimo-v2-flash", fields, "test"), "automodel")


def test_counts_by_component_in_two_sizes() -> None:
    """Sinks are a buffer here, a parameter in transformers."""
    for name, overrides in (("mimo-v2-flash", {}), ("small", in_words_of_transformers(STORED["shape"]))):
        made = build(model_config("mimo-v2-flash", overrides, "test"), "automodel")
        counts = STORED["counts"][name]
        assert {part: made.count(part) for part in counts} == counts
        assert made.count() == sum(counts.values())


def test_tensors_are_those_that_automodel_registers() -> None:
    made, stored = graph(), STORED["registered"]
    found: list[Any] = []
    for layer in made.layers:
        prefix = f"{layer.path}." if made.kinds[layer.kind].block is None else ""
        found += [[prefix + t.name, list(t.shape)] for t in made.tensors[layer.kind] if not t.is_buffer]
    assert found == stored["parameters"]
    assert stored["fp32"] == []


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_layer_allocates_what_automodel_s_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = STORED["layers"][name]
    given = row["case"].get("overrides", {})
    layer = layer_of(graph(**given), row["case"], (STORED["shape"] | given)["moe_intermediate_size"], "mlp",
                     monkeypatch)
    assert grouped(changes(layer.forward)) == grouped(row["forward"])
    assert grouped(changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_backward_of_experts_leaves_only_gradients(checkpoint: str) -> None:
    expect_gradients_alone(graph(), 3, checkpoint)
