"""Phi-3 and Phi-4: Llama's layers with query, key and value in one matrix, gate and up in another.

As transformers 5.23 `models/phi3`: every layer slides or none does; a part of each head may be rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Phi3Config`; InputError for values that are not modelled."""
    for field in ("resid_pdrop", "embd_pdrop", "attention_dropout"):
        if config.fraction(field, 0):
            raise config.fail(field, "dropout is not modelled yet")
    window = 0 if config.fields.get("sliding_window") is None else config.integer("sliding_window")
    mixer = attention(config, window=window)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim, _factor(config))
    layer = decoder_layer("phi3", replace(mixer, rotated=rotated), mlp(config))
    return chain(config, "phi3", [layer] * config.integer("num_hidden_layers"), rotated, window=window)


def _factor(config: Config) -> float:
    """`partial_rotary_factor`, on its own or among the rotary parameters."""
    for name in ("rope_parameters", "rope_scaling"):
        block = config.fields.get(name)
        if isinstance(block, Mapping) and "partial_rotary_factor" in block:
            return Config(block, config.where).fraction("partial_rotary_factor", 1)
    return config.fraction("partial_rotary_factor", 1)


FAMILY = ModelFamily(architecture)
