"""Nemotron-H: the published model's parameters by component, both spellings of the pattern, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError, NotYet
from simcore.graph import ModelGraph, build, model_config
from simcore.models.blocks import Attention, Embedding, Mamba2, Moe

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


CASE = {"hybrid_override_pattern": "M-*", "normalization": "LayerNorm", "add_bias_linear": True,
        "mlp_hidden_act": "gelu", "position_embedding_type": "learned_absolute", "max_position_embeddings": 1024,
        "hidden_dropout": 0.1, "attention_dropout": 0.1, "tie_word_embeddings": True, "num_hidden_layers": 3}


def megatrons(**changed: Any) -> ModelGraph:
    return build(config(**{**CASE, **changed}), "megatron")


def test_a_hybrid_in_megatrons_words() -> None:
    """Counted by hand: hidden 256; Mamba 8 heads of 32, 2 groups of state 32; attention 4 and 2 heads of 64."""
    made, inner, ffn, positions = megatrons(), 8 * 32, config()["intermediate_size"], 1024
    assert made.count("embedding") == (config()["vocab_size"] + positions) * 256
    assert made.count("lm_head") == 0
    assert made.count("norms") == 4 * 2 * 256  # before each of three layers, and after; LayerNorm has two vectors
    convolved = inner + 2 * 2 * 32
    assert made.count("mamba") == (inner + convolved + 8) * 256 + 5 * convolved + 3 * 8 + inner + inner * 256
    assert made.count("mlp") == 2 * ffn * 256 + ffn + 256
    assert made.count("attention") == (4 + 2 * 2) * 64 * (256 + 1) + 4 * 64 * 256 + 256
    assert [kind.name for kind in made.kinds if kind.dropout] == ["embedding", "mamba", "mlp", "attention"]


def test_gates_and_rotations() -> None:
    gated = megatrons(mlp_hidden_act="swiglu", add_bias_linear=False, position_embedding_type="rope")
    assert gated.count("mlp") == 3 * config()["intermediate_size"] * 256
    assert gated.kinds[3].branches[0].block == Attention(256, 4, 2, 64, rotary=True, dropout=True)
    assert gated.kinds[0].block == Embedding(config()["vocab_size"], 256, rotary_dim=64)


PREDICTS = {"mtp_num_layers": 2, "mtp_hybrid_override_pattern": "*E", "mtp_use_repeated_layer": True}


def test_a_module_that_predicts_two_tokens_counts_once() -> None:
    """Two norms and a projection of both halves, an attention and a MoE layer with their norms, a final norm."""
    plain, repeated, apart = (build(config(**more), "megatron") for more in (
        {}, PREDICTS, {**PREDICTS, "mtp_use_repeated_layer": False}))
    layers = {name: plain.count(name) // 2 for name in ("routed_experts", "shared_experts", "router")}
    inner = sum(layers.values()) + plain.count("attention") + 2 * 256
    assert repeated.count("mtp") == inner + 3 * 256 + 2 * 256 * 256
    assert repeated.count() == plain.count() + repeated.count("mtp")
    assert apart.count("mtp") == 2 * repeated.count("mtp")
    assert repeated.num_blocks == plain.num_blocks


@pytest.mark.parametrize(("changed", "told"), [
    ({"mtp_hybrid_override_pattern": None}, "mtp_hybrid_override_pattern: expected letters"),
    ({"mtp_hybrid_override_pattern": "EE"}, "two layers of a kind"), ({"normalization": "LayerNorm"}, "or LayerNorm")])
def test_modules_that_are_not_modelled(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        megatrons(**{**config(), **PREDICTS, **changed, "add_bias_linear": False, "mlp_hidden_act": "relu2"})


@pytest.mark.parametrize("code", ["hf", "automodel"])
@pytest.mark.parametrize(("changed", "told"), [
    ({"normalization": "LayerNorm"}, "LayerNorm"), ({"tie_word_embeddings": True}, "a tied head"),
    ({"position_embedding_type": "rope"}, "rotary positions"), ({"hidden_dropout": 0.1}, "dropout"),
    ({"hybrid_override_pattern": "M-", "num_hidden_layers": 2, "mlp_hidden_act": "swiglu"}, "a gated MLP"),
    (PREDICTS, "multi-token prediction")])
def test_only_megatron_builds_other_hybrids(code: str, changed: dict[str, Any], told: str) -> None:
    assert build(config(**changed), "megatron").num_blocks
    with pytest.raises(NotYet, match=f"{told} .* only Megatron's have it"):
        build(config(**changed), code)


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
    ({"add_bias_linear": True}, "add_bias_linear: experts with biases are not modelled yet"),
    ({"mlp_hidden_act": "gelu"}, "mlp_hidden_act: experts other than relu2's"),
    ({"mlp_hidden_act": "tanh"}, "mlp_hidden_act: expected relu2 or gelu or swiglu, got 'tanh'"),
    ({"normalization": "BatchNorm"}, "normalization: expected RMSNorm or LayerNorm"),
    ({"position_embedding_type": "relative"}, "position_embedding_type: expected none or learned_absolute or rope"),
    ({"hidden_dropout": 2}, "hidden_dropout: expected a number from 0 to 1, got 2"),
    ({"moe_latent_size": 64}, "moe_latent_size"),
    ({"hidden_size": 0}, "hidden_size: expected an integer from 1"), ({"vocab_size": None}, "vocab_size")])
def test_a_configuration_that_cannot_be_read_is_refused_by_field(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        graph(**changed)
    assert told in str(refused.value)
