"""Nemotron-H: the published model's parameters by component, both spellings of the pattern, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.graph import ModelGraph, build, model_config
from simcore.models.blocks import Attention, Mamba2, Moe

NANO = {
    "routed_experts": 29_374_808_064, "shared_experts": 458_981_376, "mamba": 891_070_784, "attention": 140_378_112,
    "router": 7_913_472, "norms": 142_464, "embedding": 352_321_536, "lm_head": 352_321_536,
}


def config(**changed: Any) -> dict[str, Any]:
    return {**model_config("nemotron-3-tiny", None, "model"), **changed}


def graph(**changed: Any) -> ModelGraph:
    return build({k: v for k, v in config(**changed).items() if v is not None}, "hf")


@pytest.mark.parametrize("implementation", ["automodel", "hf", "megatron"])
def test_the_published_model_by_component(implementation: str) -> None:
    nano = build(model_config("nemotron-3-nano-30b-a3b", None, "model"), implementation)
    assert {name: nano.count(name) for name in nano.components()} == NANO
    assert nano.count() == sum(NANO.values()) == 31_577_937_344
    assert (nano.num_blocks, len(nano.layers)) == (52, 56)


def test_letters_become_layers() -> None:
    tiny = graph()
    assert [tiny.kinds[layer.kind].name for layer in tiny.layers] == [
        "embedding", "mamba", "moe", "mamba", "attention", "moe", "final_norm", "head", "loss"]
    blocks = {kind.name: kind.branches[0].block for kind in tiny.kinds if kind.branches}
    assert blocks["mamba"] == Mamba2(256, 8, 32, 2, 32, 4, 64)
    assert blocks["attention"] == Attention(256, 4, 2, 64)
    assert blocks["moe"] == Moe(256, 8, 2, 128, 256)


@pytest.mark.parametrize("key", ["layers_block_type", "layer_types"])
@pytest.mark.parametrize("names", [["mamba", "moe", "mamba", "attention", "moe"],
                                   ["linear_attention", "moe", "linear_attention", "full_attention", "moe"]])
def test_the_names_of_newer_configurations_mean_the_letters(key: str, names: list[str]) -> None:
    new = graph(hybrid_override_pattern=None, **{key: names})
    assert new.architecture == graph().architecture


def test_fewer_layers_than_the_pattern_has() -> None:
    assert graph(num_hidden_layers=2).architecture.pattern == "ME"


def test_ten_thousand_layers_have_three_kinds() -> None:
    big = graph(hybrid_override_pattern="ME*M" * 2500, num_hidden_layers=10_000)
    assert big.num_blocks == 10_000
    assert len(big.kinds) == 7
    assert big.count("attention") == 2500 * graph().count("attention")


@pytest.mark.parametrize(("changed", "told"), [
    ({"hybrid_override_pattern": "MXE"},
     "hybrid_override_pattern: expected letters of M, E, * and -, got 'X' at layer 1"),
    ({"hybrid_override_pattern": ""}, "expected letters"),
    ({"hybrid_override_pattern": None}, "hybrid_override_pattern: expected a pattern"),
    ({"hybrid_override_pattern": None, "layer_types": ["mamba", "rnn"]}, "got 'rnn' at layer 1"),
    ({"num_hidden_layers": 6}, "num_hidden_layers: expected at most the pattern's 5 layers, got 6"),
    ({"n_groups": 3}, "n_groups: expected a divisor of 8 Mamba heads, got 3"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 4 heads, got 3"),
    ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most 8 experts, got 9"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings"), ({"moe_latent_size": 64}, "moe_latent_size"),
    ({"hidden_size": 0}, "hidden_size: expected an integer from 1"), ({"vocab_size": None}, "vocab_size")])
def test_a_configuration_that_cannot_be_read_is_refused_by_field(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        graph(**changed)
    assert told in str(refused.value)
