"""The DeepSeek family: transformers 5.23 `models/deepseek_v2`, `_v3`, `_v32`, `deepseek_v4`, and `mistral4`.

The first `first_k_dense_replace` layers are dense, the others have routed and shared experts. Shared experts are one
MLP of `n_shared_experts` times the width. V2 routes by softmax, V3 (and Moonlight, which is a V3) by sigmoid. V3.2 is
a V3 in which an indexer chooses the keys that each query attends to. Mistral 4 routes by softmax, and multiplies its
queries by a number of their position (`llama_4_scaling_beta`, which `Mistral4Config` has where no rotation is told).
These have latent attention.

V4 (`configuration_deepseek_v4.py`, __post_init__) has one key for all heads, which is the value too, of a window, and
compressed keys of older tokens in layers that `layer_types` or `compress_ratios` say: one of 128, or one of 4, of which
an indexer chooses. There are `hc_mult` residual streams. Experts of the first layers are said by a table of tokens.

[Note: multi-token prediction]
Published configurations say `num_nextn_predict_layers: 1`, and neither transformers nor Megatron-Bridge 0.3.1 builds
the module (`modeling_deepseek_v3.py`, `_keys_to_ignore_on_load_unexpected`; `deepseek_v3_bridge.py`, `mtp_num_layers =
None`). Here Megatron's option `mtp_num_layers` adds it.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import (
    Branch,
    CompressedAttention,
    FinalNorm,
    Indexer,
    LatentAttention,
    LayerKind,
    Moe,
    Streams,
)
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
    if family == "deepseek_v4":
        return _fourth(config)
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


# ---- V4 ---------------------------------------------------------------------------------------------------------
_LAYERS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
_OF_RATIO = {0: _LAYERS[0], 4: _LAYERS[1], 128: _LAYERS[2]}
_ROUTED = ("hash_moe", "moe")


def _fourth(config: Config) -> Architecture:
    count, streams = config.integer("num_hidden_layers"), Streams(
        config.integer("hc_mult", default=4), config.integer("hc_sinkhorn_iters", default=20))
    config.choice("hidden_act", ("silu",))
    config.choice("scoring_func", ("sqrtsoftplus",))
    tables = min(count, config.integer("num_hash_layers", default=3, least=0))
    routed = config.names("mlp_layer_types", ("hash_moe",) * tables + ("moe",) * (count - tables), _ROUTED)
    layers = [_layer(_compressed(config, attends), _clamped(config, by_table=kind == "hash_moe"), streams)
              for attends, kind in zip(_attending(config, count), routed, strict=True)]
    made = chain(config, "deepseek_v4", layers, _rotated(config), last=FinalNorm(
        config.integer("hidden_size"), streams=streams.count), norm="model")
    # DeepseekV4RotaryEmbedding of the model, of each compressor and indexer: four of frequencies, fp32.
    blocks = [branch.block for layer in layers for branch in layer.branches]
    held = 1 + sum((block.every > 0) + (block.indexer is not None) for block in blocks if isinstance(
        block, CompressedAttention))
    return replace(made, buffers=(("model.rotary_emb.inv_freq", held * 4 * 4 * (_rotated(config) // 2)),),
                   announced=config.integer("num_nextn_predict_layers", default=1, least=0))


def _layer(mixer: CompressedAttention, experts: Moe, streams: Streams) -> LayerKind:
    return LayerKind("moe_decoder", "deepseek_v4", mixer.hidden, (
        Branch("input_layernorm", "self_attn", mixer), Branch("post_attention_layernorm", "mlp", experts)),
        streams=streams)


def _attending(config: Config, count: int) -> tuple[str, ...]:
    """Type of each layer's attention: as listed, by `compress_ratios`, or the default, in which two come first."""
    usual = tuple(_LAYERS[2 if layer < 2 or layer % 2 else 1] for layer in range(count))
    ratios = config.fields.get("compress_ratios")
    if ratios is not None and config.fields.get("layer_types") is None:
        if not isinstance(ratios, list) or len(ratios) < count or any(one not in _OF_RATIO for one in ratios):
            raise config.fail("compress_ratios", f"expected {count} or more of 0, 4, 128, got {ratios!r}")
        return tuple(_OF_RATIO[one] for one in ratios[:count])
    return config.names("layer_types", usual, _LAYERS)


def _compressed(config: Config, kind: str) -> CompressedAttention:
    heads, size = config.integer("num_attention_heads"), config.integer("head_dim", default=512)
    groups = config.integer("o_groups", default=8)
    if config.integer("num_key_value_heads", default=1) != 1:
        raise config.fail("num_key_value_heads", "expected 1: all heads share a key, which is the value too")
    if heads * size % groups:
        raise config.fail("o_groups", f"expected a divisor of {heads * size} columns of all heads, got {groups}")
    sparse = kind == _LAYERS[1]
    rates = config.fields.get("compress_rates") or {_LAYERS[1]: 4, _LAYERS[2]: 128}
    return CompressedAttention(
        config.integer("hidden_size"), heads, size, _rotated(config), config.integer("q_lora_rank", default=1024),
        config.integer("sliding_window", default=128), groups, config.integer("o_lora_rank", default=1024),
        0 if kind == _LAYERS[0] else int(rates[kind]), overlaps=sparse, indexer=Indexer(
            config.integer("index_n_heads", default=64), config.integer("index_head_dim", default=128),
            config.integer("index_topk", default=512)) if sparse else None)


def _rotated(config: Config) -> int:
    """Dimensions of a head that are rotated: `qk_rope_head_dim`, else an eighth."""
    return config.integer("qk_rope_head_dim", default=config.integer("head_dim", default=512) // 8)


def _clamped(config: Config, *, by_table: bool) -> Moe:
    one = _moe(config, "sqrtsoftplus", normalised=True)
    if one.shared_ffn != one.expert_ffn:
        raise config.fail("n_shared_experts", "expected 1: DeepseekV4SparseMoeBlock makes one")
    return replace(one, normalised=True, clamped=True, table=config.integer("vocab_size") * by_table)


FAMILY = ModelFamily(architecture, further_fields=(
    "layer_types", "mlp_layer_types", "compress_ratios", "compress_rates", "num_hash_layers", "hc_mult",
    "hc_sinkhorn_iters", "scoring_func", "num_nextn_predict_layers"), untied={
    "megatron": "Bridge 0.3.1 models/deepseek/deepseek_v2_bridge.py:53, deepseek_v3_bridge.py:56: "
                "share_embeddings_and_output_weights = False"})
