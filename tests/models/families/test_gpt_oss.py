"""GPT-OSS: the published count, biases, sinks and windows, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate


def graph(**changed: Any) -> ModelGraph:
    return build(model_config("gpt-oss-20b", changed, "model"), "hf")


def windows(made: ModelGraph) -> list[int]:
    blocks = [made.kinds[layer.kind].branches[0].block for layer in made.layers[1:-3]]
    return [block.window for block in blocks if isinstance(block, Attention)]


def test_the_published_count() -> None:
    """20.9 B parameters."""
    assert graph().count() == 20_914_757_184


def test_every_second_layer_slides() -> None:
    assert windows(graph(num_hidden_layers=3)) == [128, 0, 128]
    types = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    assert windows(graph(num_hidden_layers=3, layer_types=types)) == [0, 0, 128]


def test_biases_and_sinks() -> None:
    """Four of attention, one of the router, two of the experts; one sink a head."""
    layer = graph().tensors[1]
    assert len([t for t in layer if t.module == "bias"]) == 4 + 1 + 2
    assert {t.name: t.shape for t in layer}["self_attn.sinks"] == (64,)
    without = build(model_config("gpt-oss-20b", {"attention_bias": False}, "model"), "hf").tensors[1]
    assert len([t for t in without if t.module == "bias"]) == 3


@pytest.mark.parametrize(("changed", "told"), [
    ({"layer_types": ["full_attention"]}, "layer_types: expected 24 or more of sliding_attention, full_attention"),
    ({"layer_types": ["mamba"] * 24}, "layer_types: expected 24"), ({"hidden_act": "relu"}, "hidden_act")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)


def test_the_gradient_of_sinks_is_as_long_as_they_are_at_any_length() -> None:
    """torch copies what is strided: at one position too, where nothing is summed."""
    grads = [simulate(small.scenario("ddp", {}, model={"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 1}},
                                     seq_len=seq_len), timed=False).ranks[0].peak for seq_len in (1, 2)]
    assert grads[0] is not None
    assert grads[1] is not None
    assert grads[0].by_category["unsharded_grad"] == grads[1].by_category["unsharded_grad"]
