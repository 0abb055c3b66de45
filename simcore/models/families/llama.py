"""The dense Llama family (RMSNorm, rotary grouped-query attention, SwiGLU), as transformers 5.23 `models/llama`."""

from __future__ import annotations

from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, check_fair_heads, decoder_layer, mlp

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `LlamaConfig`; InputError for values that are not modelled."""
    check_fair_heads(config)
    mixer = attention(config)
    for field in ("attention_bias", "mlp_bias"):
        if config.boolean(field, default=False):
            raise config.fail(field, "biases are not modelled yet")
    layer = decoder_layer("llama", mixer, mlp(config))
    return chain(config, "llama", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


FAMILY = ModelFamily(architecture)
