"""Mistral: Llama's layers, with a window where the configuration has one, as transformers 5.23 `models/mistral`.

Every layer slides or none does. A configuration that does not name `sliding_window` has 4,096 (`MistralConfig`).
"""

from __future__ import annotations

from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp

__all__ = ["FAMILY"]

_DEFAULT_WINDOW = 4096


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `MistralConfig`; InputError for values that are not modelled."""
    window = _window(config)
    mixer = attention(config, window=window)
    layer = decoder_layer("mistral", mixer, mlp(config))
    return chain(config, "mistral", [layer] * config.integer("num_hidden_layers"), mixer.head_dim, window=window)


def _window(config: Config) -> int:
    """0: `sliding_window: null`, all tokens are seen."""
    if "sliding_window" in config.fields and config.fields["sliding_window"] is None:
        return 0
    return config.integer("sliding_window", default=_DEFAULT_WINDOW)


FAMILY = ModelFamily(architecture)
