"""Shared parts of rotary decoders: the chain around the layers, its rotary tables, fields that are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Attention, Embedding, LayerKind, Mlp, Mtp
from simcore.models.config import Config
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, top_k

FIELDS: dict[str, Any] = {"hidden_size": 64, "vocab_size": 100, "intermediate_size": 96, "num_attention_heads": 4,
                          "num_experts_per_tok": 2}


def config(**changed: Any) -> Config:
    return Config({**FIELDS, **changed}, "f.json")


def test_heads_follow_from_the_hidden_size_unless_given() -> None:
    assert attention(config()) == Attention(64, 4, 4, 16, rotary=True)
    assert attention(config(head_dim=32, num_key_value_heads=2)) == Attention(64, 4, 2, 32, rotary=True)


def test_parts_stand_around_the_layers_and_further_tokens_behind_the_norm() -> None:
    layer = decoder_layer("llama", attention(config()), mlp(config()))
    made = chain(config(), "llama", [layer] * 2, 16, mtp=1)
    assert [path for path, _ in made.parts] == ["model.embed_tokens", "model.layers.0", "model.layers.1",
                                                "model.norm", "mtp.layers.0", "lm_head", "loss"]
    assert made.parts[0][1].block == Embedding(100, 64, 16, shared=True)
    assert made.parts[4][1] == LayerKind("mtp", "llama", 64, layer.branches, Mtp(64, 100))
    assert made.buffers == (("model.rotary_emb.inv_freq", 2 * 4 * 8),)


def test_a_layer_is_attention_then_mlp() -> None:
    layer = decoder_layer("llama", attention(config()), mlp(config()))
    assert [(b.norm, b.name) for b in layer.branches] == [
        ("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp")]
    assert layer.branches[1].block == Mlp(64, 96)


def test_refused() -> None:
    with pytest.raises(InputError, match="hidden_act: expected silu, got 'gelu'"):
        mlp(config(hidden_act="gelu"))
    with pytest.raises(InputError, match="num_key_value_heads: expected a divisor of 4 heads, got 3"):
        attention(config(num_key_value_heads=3))
    with pytest.raises(InputError, match="num_experts_per_tok: expected at most 1 experts, got 2"):
        top_k(config(), 1)
