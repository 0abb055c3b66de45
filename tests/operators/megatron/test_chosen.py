"""GLM-5's parameters under Megatron's main: names, shapes and order, and the published sizes' elements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.megatron.implementation import tensors

ROWS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/truth/models/glm5-main-2026-08-22.json").read_text(
    encoding="utf-8"))


def graph(name: str) -> ModelGraph:
    case = ROWS[name]["case"]
    return build(model_config(case["preset"], case.get("fields"), name), "megatron", name)


def spelled(made: ModelGraph) -> Iterator[str]:
    """Names and shapes of a small model; an expert's matrices by their numbers, modules of main by their names there.

    The embedding that multi-token prediction reads is the model's own.
    """
    for layer in made.layers:
        at = f"{layer.path.replace('model.', 'decoder.')}." if layer.path[-1].isdigit() else ""
        for spec in made.tensors[layer.kind]:
            if spec.is_buffer or (at.startswith("mtp") and spec.name.startswith("embedding")):
                continue
            name = f"{at}{spec.name}".replace("transformer_layer", "mtp_model_layer")
            shape = "x".join(map(str, spec.shape))
            yield from (f"{name}{copy} {shape}" for copy in (range(spec.copies) if spec.copies > 1 else [""]))


@pytest.mark.parametrize("name", ["glm-5", "glm-5.2"])
def test_parameters_are_registered_as_by_core(name: str) -> None:
    assert sorted(spelled(graph(name))) == sorted(ROWS[name]["tensors"])


@pytest.mark.parametrize("name", ["glm-5", "glm-5.2"])
def test_a_layers_parameters_come_in_cores_order(name: str) -> None:
    found = [line for line in spelled(graph(name)) if line.startswith("decoder.layers.1.")]
    assert found == [line for line in ROWS[name]["tensors"] if line.startswith("decoder.layers.1.")]


@pytest.mark.parametrize("name", ["whole-glm-5", "whole-glm-5.2"])
def test_a_published_size_has_as_many_elements(name: str) -> None:
    made = graph(name)
    found = sum(spec.numel * spec.copies for layer in made.layers for spec in made.tensors[layer.kind]
                if not spec.is_buffer and not (layer.path.startswith("mtp") and spec.name.startswith("embedding")))
    assert found == ROWS[name]["elements"]


def test_an_indexer_trains() -> None:
    made = graph("glm-5")
    index = [spec for specs in made.tensors for spec in specs if "indexer" in spec.name]
    assert index
    assert all(spec.trainable for spec in index)


def test_a_module_that_would_take_keys_of_a_layer_is_not_yet_built() -> None:
    with pytest.raises(NotYet, match="multi-token prediction that take keys"):
        build(model_config("glm-5.2", {"mtp_num_layers": 4}, "here"), "megatron", "here")


def test_deepseek_v4_is_refused_by_cores_rule() -> None:
    made = build(model_config("deepseek-v4-flash", None, "here"), "hf", "here")
    with pytest.raises(IllegalLayout, match="dsv4_hybrid"):
        tensors(made.kinds[0])
