"""Hunyuan 3 (HYV3): grouped-query attention with norms of heads before experts chosen by sigmoid; the first is dense.

As transformers 5.23 `models/hy_v3` (`HYV3Config`) and NeMo Automodel 0.7.0 `components/models/hy_v3`, which reads how
many layers are dense from `first_k_dense_replace`, and whether weights of experts are normalised from `route_norm`.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, top_k

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with an `HYV3Config`; InputError for values that are not modelled."""
    config.refuse("attention_bias", "mlp_bias")
    if not config.boolean("moe_router_enable_expert_bias", default=True):
        raise config.fail("moe_router_enable_expert_bias", "a router without a correction bias is not modelled yet")
    mixer = attention(config, qk_norm=True)
    experts, ffn = config.integer("num_experts"), config.integer("moe_intermediate_size")
    moe = Moe(config.integer("hidden_size"), experts, top_k(config, experts), ffn,
              ffn * config.integer("num_shared_experts", default=1, least=0), gated=True, router="sigmoid",
              normalised=config.boolean("route_norm", default=False))
    count = config.integer("num_hidden_layers")
    first = min(count, config.integer("first_k_dense_replace", default=1, least=0))
    dense, sparse = decoder_layer("hy_v3", mixer, mlp(config)), decoder_layer("hy_v3", mixer, moe)
    return chain(config, "hy_v3", [dense] * first + [sparse] * (count - first), mixer.head_dim)


FAMILY = ModelFamily(architecture, further_fields=("first_k_dense_replace", "route_norm"))
