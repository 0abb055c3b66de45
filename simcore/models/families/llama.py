"""The dense Llama family (RMSNorm, rotary grouped-query attention, SwiGLU), and two that differ little from it.

As transformers 5.23 `models/llama`. Granite 3 (`models/granite`): numbers multiply the embedding, every residual branch
and the logits; the one for attention's scores stands where Llama has one too. OLMo 2 (`models/olmo2`): norms behind
attention and MLP alone, and over all heads of query and of key together; rotary tables stay in fp32.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, check_fair_heads, decoder_layer, mlp

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `LlamaConfig`, `GraniteConfig` or `Olmo2Config`.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    if family == "llama":
        check_fair_heads(config)
    for field in ("attention_bias", *(("mlp_bias",) if family != "olmo2" else ())):
        if config.boolean(field, default=False):
            raise config.fail(field, "biases are not modelled yet")
    mixer = attention(config, qk_norm=family == "olmo2")
    layer = _olmo2(config, mixer) if family == "olmo2" else replace(
        decoder_layer(family, mixer, mlp(config)), scaled=family == "granite")
    return chain(config, family, [layer] * config.integer("num_hidden_layers"), mixer.head_dim,
                 scaled=family == "granite")


def _olmo2(config: Config, mixer: Attention) -> LayerKind:
    return LayerKind("decoder", "olmo2", mixer.hidden, (
        Branch("", "self_attn", replace(mixer, whole_norms=True), behind="post_attention_layernorm"),
        Branch("", "mlp", mlp(config), behind="post_feedforward_layernorm")))


FAMILY = ModelFamily(architecture)
