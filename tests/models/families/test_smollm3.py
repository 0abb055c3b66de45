"""SmolLM3: the published count, which layers rotate, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 4,
                         "num_attention_heads": 4, "num_key_value_heads": 2}


def graph(**changed: Any) -> ModelGraph:
    return build(model_config("smollm3-3b", changed, "model"), "hf")


def turned(made: ModelGraph) -> list[bool]:
    blocks = [made.kinds[layer.kind].branches[0].block for layer in made.layers[1:-3]]
    return [block.rotary for block in blocks if isinstance(block, Attention)]


def test_the_published_count() -> None:
    assert graph().count() == 3_075_098_624


def test_each_fourth_layer_rotates_nothing_or_those_that_are_told() -> None:
    assert turned(graph()) == [True, True, True, False] * 9
    assert turned(graph(num_hidden_layers=4, no_rope_layers=[0, 1, 1, 0])) == [False, True, True, False]
    assert turned(graph(num_hidden_layers=4, no_rope_layers=None, no_rope_layer_interval=2)) == [True, False] * 2


@pytest.mark.parametrize(("changed", "what"), [
    ({"use_sliding_window": True}, "use_sliding_window"), ({"attention_bias": True}, "attention_bias"),
    ({"no_rope_layers": [1]}, "no_rope_layers")])
def test_what_is_not_modelled_is_refused(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        graph(**{**SMALL, **changed})


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero3", {"dp_shard": 2})])
def test_a_step_is_simulated(framework: str, mesh: dict[str, int]) -> None:
    report = simulate(small.scenario(framework, mesh, model={"config": "smollm3-3b", "overrides": SMALL}))
    assert report.status == "ok", report.problems
