"""Mistral, and Mixtral with its experts: Llama's layers, as transformers 5.23 `models/mistral` and `models/mixtral`.

Mistral's layers have a window where the configuration has one: every layer or none. A configuration that does not name
`sliding_window` has 4,096 (`MistralConfig`), Mixtral's has none.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, top_k

__all__ = ["FAMILY"]

_DEFAULT_WINDOW = 4096


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `MistralConfig` or `MixtralConfig`; InputError for what is not modelled."""
    if config.fields["model_type"] == "mixtral":
        return _mixtral(config)
    window = _window(config)
    mixer = attention(config, window=window)
    layer = decoder_layer("mistral", mixer, mlp(config))
    return chain(config, "mistral", [layer] * config.integer("num_hidden_layers"), mixer.head_dim, window=window)


def _window(config: Config) -> int:
    """0: `sliding_window: null`, all tokens are seen."""
    if "sliding_window" in config.fields and config.fields["sliding_window"] is None:
        return 0
    return config.integer("sliding_window", default=_DEFAULT_WINDOW)


def _mixtral(config: Config) -> Architecture:
    if config.fields.get("sliding_window") is not None:
        raise config.fail("sliding_window", "attention within a window is not modelled yet")
    config.choice("hidden_act", ("silu",))
    mixer, experts = attention(config), config.integer("num_local_experts")
    moe = Moe(mixer.hidden, experts, top_k(config, experts), config.integer("intermediate_size"), 0, gated=True,
              router="softmax")
    layer = decoder_layer("mixtral", mixer, moe)
    return chain(config, "mixtral", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


FAMILY = ModelFamily(architecture)
