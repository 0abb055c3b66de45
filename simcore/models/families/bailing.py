"""Ling 2.0 (Bailing MoE V2): grouped-query attention with norms of heads before experts chosen by sigmoid in groups.

As NeMo Automodel 0.7.0 `components/models/ling_v2/{config,model,layers}.py`; transformers 5.23 has no code of it, the
checkpoints have their own. A part of a head is rotated: `rotary_dim` dimensions, else `partial_rotary_factor` of it.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims, top_k

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `BailingMoeV2Config`; InputError for values that are not modelled."""
    config.refuse("use_bias")
    config.choice("score_function", ("sigmoid",))
    if not config.boolean("moe_router_enable_expert_bias", default=True):
        raise config.fail("moe_router_enable_expert_bias", "a router without a correction bias is not modelled yet")
    for field in ("attention_dropout", "embedding_dropout", "output_dropout"):
        if config.fraction(field, 0):
            raise config.fail(field, "dropout is not modelled yet")
    mixer = attention(config, bias="qkv" if config.boolean("use_qkv_bias", default=False) else "",
                      qk_norm=config.boolean("use_qk_norm", default=True))
    share = config.integer("rotary_dim", default=0, least=0) / mixer.head_dim or config.fraction(
        "partial_rotary_factor", 1)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim, share)
    mixer = replace(mixer, rotated=rotated)
    dense, sparse = (decoder_layer("bailing_moe", mixer, block) for block in (mlp(config), _experts(config)))
    count = config.integer("num_hidden_layers")
    first = min(count, config.integer("first_k_dense_replace", default=1, least=0))
    return chain(config, "bailing_moe", [dense] * first + [sparse] * (count - first), rotated)


def _experts(config: Config) -> Moe:
    experts, ffn = config.integer("num_experts"), config.integer("moe_intermediate_size")
    groups, few, chosen = config.integer("n_group", default=8), config.integer("topk_group", default=4), top_k(
        config, experts)
    if experts % groups or not few <= groups or chosen > few * experts // groups:
        raise config.fail("n_group", f"expected equal groups, and {chosen} experts or more in topk_group of them")
    return Moe(config.integer("hidden_size"), experts, chosen, ffn,
               ffn * config.integer("num_shared_experts", default=1, least=0), gated=True, router="sigmoid",
               normalised=config.boolean("norm_topk_prob", default=True), num_groups=groups, chosen_groups=few)


FAMILY = ModelFamily(architecture, further_fields=("use_qk_norm", "use_qkv_bias", "partial_rotary_factor",
                                                   "rotary_dim"))
