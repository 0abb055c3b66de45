"""Granite 3: Llama with numbers that multiply the embedding, every residual branch and the logits.

As transformers 5.23 `models/granite`. The number that attention's scores are multiplied by (`attention_multiplier`)
stands where Llama has one too.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GraniteConfig`; InputError for values that are not modelled."""
    config.refuse("attention_bias", "mlp_bias")
    mixer = attention(config)
    layer = replace(decoder_layer("granite", mixer, mlp(config)), scaled=True)
    return chain(config, "granite", [layer] * config.integer("num_hidden_layers"), mixer.head_dim, scaled=True)


FAMILY = ModelFamily(architecture)
