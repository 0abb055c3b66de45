"""Ling 2.0 (Bailing MoE V2) and Hunyuan 3: attention with norms of heads before experts chosen by sigmoid.

Both have grouped-query attention, dense first layers, and shared experts beside the routed ones. As NeMo Automodel
0.7.0 `components/models/ling_v2/{config,model,layers}.py` and `components/models/hy_v3`, which reads how many layers
are dense from `first_k_dense_replace`, and whether weights of experts are normalised from `route_norm`. transformers
5.23 has `models/hy_v3` (`HYV3Config`) and no code of Ling, whose checkpoints have their own. Of Ling a part of a head
is rotated: `rotary_dim` dimensions, else `partial_rotary_factor` of it, and a token's experts are in few groups.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims, top_k

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `BailingMoeV2Config` or `HYV3Config`.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    if not config.boolean("moe_router_enable_expert_bias", default=True):
        raise config.fail("moe_router_enable_expert_bias", "a router without a correction bias is not modelled yet")
    mixer, moe = _ling(config) if family == "bailing_moe" else _hunyuan(config)
    dense, sparse = (decoder_layer(family, mixer, block) for block in (mlp(config), moe))
    count = config.integer("num_hidden_layers")
    first = min(count, config.integer("first_k_dense_replace", default=1, least=0))
    return chain(config, family, [dense] * first + [sparse] * (count - first), mixer.rotated or mixer.head_dim)


def _ling(config: Config) -> tuple[Attention, Moe]:
    config.refuse("use_bias")
    config.choice("score_function", ("sigmoid",))
    for field in ("attention_dropout", "embedding_dropout", "output_dropout"):
        if config.fraction(field, 0):
            raise config.fail(field, "dropout is not modelled yet")
    mixer = attention(config, bias="qkv" if config.boolean("use_qkv_bias", default=False) else "",
                      qk_norm=config.boolean("use_qk_norm", default=True))
    share = config.integer("rotary_dim", default=0, least=0) / mixer.head_dim or config.fraction(
        "partial_rotary_factor", 1)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim, share)
    moe = _experts(config, normalised=config.boolean("norm_topk_prob", default=True))
    groups, few = config.integer("n_group", default=8), config.integer("topk_group", default=4)
    if moe.num_experts % groups or not few <= groups or moe.top_k > few * moe.num_experts // groups:
        raise config.fail("n_group", f"expected equal groups, and {moe.top_k} experts or more in topk_group of them")
    return replace(mixer, rotated=rotated), replace(moe, num_groups=groups, chosen_groups=few)


def _hunyuan(config: Config) -> tuple[Attention, Moe]:
    config.refuse("attention_bias", "mlp_bias")
    return attention(config, qk_norm=True), _experts(config, normalised=config.boolean("route_norm", default=False))


def _experts(config: Config, *, normalised: bool) -> Moe:
    experts, ffn = config.integer("num_experts"), config.integer("moe_intermediate_size")
    shared = ffn * config.integer("num_shared_experts", default=1, least=0)
    return Moe(config.integer("hidden_size"), experts, top_k(config, experts), ffn, shared, gated=True,
               router="sigmoid", normalised=normalised)


FAMILY = ModelFamily(architecture, further_fields=("use_qk_norm", "use_qkv_bias", "partial_rotary_factor",
                                                   "rotary_dim", "first_k_dense_replace", "route_norm"))
