"""The dense Llama family (RMSNorm, rotary grouped-query attention, SwiGLU), and some that differ little from it.

As transformers 5.23 `models/llama`. Granite 3 (`models/granite`): numbers multiply the embedding, every residual branch
and the logits; the one for attention's scores stands where Llama has one too. OLMo 2 (`models/olmo2`): norms behind
attention and MLP alone, and over all heads of query and of key together; rotary tables stay in fp32. Seed-OSS
(`models/seed_oss`): biases of query, key and value, and dropout of what attention and MLP add. ERNIE 4.5
(`models/ernie4_5`): neighbours of a head are rotated, in fp32.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, check_fair_heads, decoder_layer, mlp

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a config of Llama, Granite, OLMo 2, Seed-OSS or ERNIE 4.5.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    if family == "seed_oss":
        return _seed_oss(config)
    if family == "llama":
        check_fair_heads(config)
    for field in _BIASES.get(family, ("attention_bias", "mlp_bias")):
        if config.boolean(field, default=False):
            raise config.fail(field, "biases are not modelled yet")
    mixer = attention(config, qk_norm=family == "olmo2", head_dim=128 if family == "ernie4_5" else 0)
    layer = _olmo2(config, mixer) if family == "olmo2" else replace(
        decoder_layer(family, mixer, mlp(config)), scaled=family == "granite")
    return chain(config, family, [layer] * config.integer("num_hidden_layers"), mixer.head_dim,
                 scaled=family == "granite", tied=family == "ernie4_5")


_BIASES = {"olmo2": ("attention_bias",), "ernie4_5": ("use_bias",)}


def _seed_oss(config: Config) -> Architecture:
    """Layers of Seed-OSS; without a word about it a tenth is dropped (`SeedOssConfig`)."""
    config.refuse("mlp_bias", "attention_out_bias")
    mixer = replace(attention(config, bias="qkv" if config.boolean("attention_bias", default=True) else "",
                              head_dim=128), dropout=config.fraction("attention_dropout", 0.1) > 0)
    layer = replace(decoder_layer("seed_oss", mixer, mlp(config)), dropout=config.fraction("residual_dropout", 0.1) > 0)
    return chain(config, "seed_oss", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


def _olmo2(config: Config, mixer: Attention) -> LayerKind:
    return LayerKind("decoder", "olmo2", mixer.hidden, (
        Branch("", "self_attn", replace(mixer, whole_norms=True), behind="post_attention_layernorm"),
        Branch("", "mlp", mlp(config), behind="post_feedforward_layernorm")))


FAMILY = ModelFamily(architecture)
