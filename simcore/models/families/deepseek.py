"""DeepSeek's latent attention: transformers 5.23 `models/deepseek_v2`, `deepseek_v3`, `deepseek_v32`, `mistral4`.

The first `first_k_dense_replace` layers are dense, the others have routed and shared experts. Shared experts are one
MLP of `n_shared_experts` times the width. V2 routes by softmax, V3 (and Moonlight, which is a V3) by sigmoid. V3.2 is
a V3 in which an indexer chooses the keys that each query attends to. Mistral 4 routes by softmax, and multiplies its
queries by a number of their position (`llama_4_scaling_beta`, which `Mistral4Config` has where no rotation is told).

[Note: multi-token prediction]
Published configurations say `num_nextn_predict_layers: 1`, and neither transformers nor Megatron-Bridge 0.3.1 builds
the module (`modeling_deepseek_v3.py`, `_keys_to_ignore_on_load_unexpected`; `deepseek_v3_bridge.py`, `mtp_num_layers =
None`). Here Megatron's option `mtp_num_layers` adds it.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Indexer, LatentAttention, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import chain, check_fair_heads, decoder_layer, mlp, top_k

__all__ = ["FAMILY", "indexer", "latent_attention", "sigmoid_experts"]

_ROUTERS = {"deepseek_v2": "softmax", "deepseek_v3": "sigmoid", "deepseek_v32": "sigmoid",
            "mistral4": "softmax"}


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `DeepseekV2Config`, `DeepseekV3Config`, `DeepseekV32Config`, `Mistral4Config`.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    config.refuse("attention_bias", "mlp_bias")
    if family == "deepseek_v2":
        check_fair_heads(config)
    if config.integer("moe_layer_freq", default=1) != 1:
        raise config.fail("moe_layer_freq", "experts in some layers only are not modelled yet")
    mixer = latent_attention(config)
    if family == "deepseek_v32":
        mixer = replace(mixer, indexer=replace(indexer(config, heads=64), hadamard=True))
    if family == "mistral4":
        turned = config.fields.get("rope_parameters")
        mixer = replace(mixer, tempered=not isinstance(turned, dict) or bool(turned.get("llama_4_scaling_beta")))
    dense = decoder_layer(family, mixer, mlp(config))
    sparse = decoder_layer(family, mixer, _moe(config, _ROUTERS[family], normalised=family != "deepseek_v2"))
    count = config.integer("num_hidden_layers")
    first = min(count, config.integer("first_k_dense_replace", default=0, least=0))
    return chain(config, family, [dense] * first + [sparse] * (count - first), mixer.rope,
                 config.integer("mtp_num_layers", default=0, least=0))


def latent_attention(config: Config) -> LatentAttention:
    """Latent attention by DeepSeek's field names; InputError for another number of key-value heads than of heads."""
    heads = config.integer("num_attention_heads")
    if config.integer("num_key_value_heads", default=heads) != heads:
        raise config.fail("num_key_value_heads", f"expected {heads}, as many as heads: latent attention has no groups")
    return LatentAttention(
        config.integer("hidden_size"), heads, config.integer("q_lora_rank", default=0), config.integer("kv_lora_rank"),
        config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim"), config.integer("v_head_dim"))


def indexer(config: Config, heads: int) -> Indexer:
    """The indexer of attention that sees chosen keys. `heads`: their number where the configuration has none."""
    return Indexer(config.integer("index_n_heads", default=heads), config.integer("index_head_dim", default=128),
                   config.integer("index_topk", default=2048))


def sigmoid_experts(config: Config) -> Moe:
    """Routed and shared experts by DeepSeek's field names, chosen by sigmoid as V3's are."""
    return _moe(config, "sigmoid", normalised=True)


def _moe(config: Config, router: str, *, normalised: bool) -> Moe:
    experts, ffn = config.integer("n_routed_experts"), config.integer("moe_intermediate_size")
    normalised = config.boolean("norm_topk_prob", default=normalised)
    shared, chosen = ffn * config.integer("n_shared_experts", default=0, least=0), top_k(config, experts)
    groups, few = config.integer("n_group", default=1), config.integer("topk_group", default=1)
    if experts % groups or not few <= groups or chosen > few * experts // groups:
        raise config.fail("n_group", f"expected equal groups, and {chosen} experts or more in topk_group of them")
    return Moe(config.integer("hidden_size"), experts, chosen, ffn, shared, gated=True, router=router,
               normalised=normalised, num_groups=groups, chosen_groups=few)


FAMILY = ModelFamily(architecture, untied={
    "megatron": "Bridge 0.3.1 models/deepseek/deepseek_v2_bridge.py:53, deepseek_v3_bridge.py:56: "
                "share_embeddings_and_output_weights = False"})
