"""OLMo 2: norms behind attention and MLP alone, and norms over all heads of query and key together.

As transformers 5.23 `models/olmo2`. Rotary tables stay in fp32, and queries and keys are rotated in it.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Branch, LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, mlp

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with an `Olmo2Config`; InputError for values that are not modelled."""
    config.refuse("attention_bias")
    mixer = replace(attention(config, qk_norm=True), whole_norms=True)
    layer = LayerKind("decoder", "olmo2", mixer.hidden, (
        Branch("", "self_attn", mixer, behind="post_attention_layernorm"),
        Branch("", "mlp", mlp(config), behind="post_feedforward_layernorm")))
    return chain(config, "olmo2", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


FAMILY = ModelFamily(architecture)
