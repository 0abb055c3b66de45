"""MiniMax-M2: grouped-query attention, query and key normed over all heads, before experts chosen by sigmoid.

As transformers 5.23 `models/minimax_m2`; a part of each head is rotated (`rotary_dim` dimensions of it), every layer
has experts and none is shared. The checkpoints' modules of multi-token prediction are not built there.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, rotated_dims, top_k

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `MiniMaxM2Config`; InputError for values that are not modelled."""
    config.choice("hidden_act", ("silu",))
    config.choice("scoring_func", ("sigmoid",))
    if not config.boolean("use_qk_norm", default=True):
        raise config.fail("use_qk_norm", "attention without norms is not modelled yet")
    mixer = attention(config, qk_norm=True)
    asked = config.integer("rotary_dim", default=mixer.head_dim)
    if asked > mixer.head_dim:
        raise config.fail("rotary_dim", f"expected at most a head's {mixer.head_dim} dimensions, got {asked}")
    rotated = rotated_dims(config, "rotary_dim", mixer.head_dim, asked / mixer.head_dim)
    experts = config.integer("num_local_experts")
    moe = Moe(config.integer("hidden_size"), experts, top_k(config, experts), config.integer("intermediate_size"), 0,
              gated=True, router="sigmoid")
    layer = decoder_layer("minimax_m2", replace(mixer, rotated=rotated, whole_norms=True), moe)
    return chain(config, "minimax_m2", [layer] * config.integer("num_hidden_layers"), rotated)


FAMILY = ModelFamily(architecture)
