"""The Qwen family and OLMoE, as transformers 5.23 `models/qwen2`, `qwen2_moe`, `qwen3`, `qwen3_moe` and `olmoe`.

Qwen2 has biases on query, key and value; Qwen3 has none, and a norm over each head of query and key. The models with
experts have them in every layer but those of `mlp_only_layers` and those that `decoder_sparse_step` skips; Qwen2-MoE
also has a shared expert with a gate. The decoder of Qwen2.5-VL is Qwen2's (`qwen2_5_vl_text`), that of Qwen3-VL Qwen3's
(`qwen3_vl_text`, `qwen3_vl_moe_text`). OLMoE has experts in every layer, and norms over all heads of query and key;
their width is `intermediate_size`.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, LayerKind, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, top_k

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a Qwen 2 or Qwen 3 configuration, dense or with experts, or of an OLMoE.

    That is a `Qwen2Config`, `Qwen2MoeConfig`, `Qwen3Config`, `Qwen3MoeConfig` or `OlmoeConfig`; InputError for values
    that are not modelled.
    """
    family = str(config.fields["model_type"])
    if family == "olmoe":
        return _olmoe(config)
    config.refuse("use_sliding_window")
    if family in ("qwen2", "qwen2_moe", "qwen2_5_vl_text"):
        biased = config.boolean("qkv_bias", default=True) if family == "qwen2_moe" else True
        mixer = attention(config, bias="qkv" if biased else "")
    else:
        config.refuse("attention_bias")
        mixer = attention(config, qk_norm=True)
    count = config.integer("num_hidden_layers")
    if family.endswith(("_moe", "_moe_text")):
        return chain(config, family, _mixed(config, family, mixer, count), mixer.head_dim)
    return chain(config, family, [decoder_layer(family, mixer, mlp(config))] * count, mixer.head_dim)


def _olmoe(config: Config) -> Architecture:
    config.refuse("attention_bias")
    if config.fields.get("clip_qkv") is not None:
        raise config.fail("clip_qkv", "not modelled yet")
    experts = config.integer("num_experts")
    sparse = Moe(config.integer("hidden_size"), experts, top_k(config, experts), config.integer("intermediate_size"), 0,
                 gated=True, router="softmax", normalised=config.boolean("norm_topk_prob", default=False))
    mixer = replace(attention(config, qk_norm=True), whole_norms=True)
    return chain(config, "olmoe", [decoder_layer("olmoe", mixer, sparse)] * config.integer("num_hidden_layers"),
                 mixer.head_dim)


def _mixed(config: Config, family: str, mixer: Attention, count: int) -> list[LayerKind]:
    """`Qwen2MoeDecoderLayer`, `Qwen3MoeDecoderLayer`.

    Layer i has experts unless it is listed as dense or i + 1 is no multiple of the step.
    """
    dense = config.fields.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise config.fail("mlp_only_layers", f"expected a list of layer numbers, got {dense!r}")
    step = config.integer("decoder_sparse_step", default=1)
    sparse = decoder_layer(family, mixer, _moe(config, shares=family == "qwen2_moe",
                                                       sees=family == "qwen3_vl_moe_text"))
    plain = decoder_layer(family, mixer, mlp(config))
    return [plain if i in dense or (i + 1) % step else sparse for i in range(count)]


def _moe(config: Config, *, shares: bool, sees: bool) -> Moe:
    """`shares`: with a shared expert; `sees`: weights of a token always add up to one."""
    experts = config.integer("num_experts")
    normalised = sees or config.boolean("norm_topk_prob", default=False)
    return Moe(config.integer("hidden_size"), experts, top_k(config, experts), config.integer("moe_intermediate_size"),
               config.integer("shared_expert_intermediate_size") if shares else 0, gated=True, router="softmax",
               normalised=normalised, shared_gate=shares)


FAMILY = ModelFamily(architecture, further_fields=("qkv_bias",))
