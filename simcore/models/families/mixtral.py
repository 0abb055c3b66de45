"""Mixtral: rotary grouped-query attention, SwiGLU experts in every layer, as transformers 5.23 `models/mixtral`."""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, top_k

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `MixtralConfig`; InputError for values that are not modelled."""
    if config.fields.get("sliding_window") is not None:
        raise config.fail("sliding_window", "attention within a window is not modelled yet")
    config.choice("hidden_act", ("silu",))
    mixer, experts = attention(config), config.integer("num_local_experts")
    moe = Moe(mixer.hidden, experts, top_k(config, experts), config.integer("intermediate_size"), 0, gated=True,
              router="softmax")
    layer = decoder_layer("mixtral", mixer, moe)
    return chain(config, "mixtral", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


FAMILY = ModelFamily(architecture)
