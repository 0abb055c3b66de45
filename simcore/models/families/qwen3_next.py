"""Qwen3-Next and Qwen3.5: gated delta net in most layers, gated attention in every fourth, then SwiGLU or experts.

As transformers 5.23 `models/qwen3_next`, `models/qwen3_5` and `models/qwen3_5_moe`; of the last two the language model
(`Qwen3_5TextConfig`, `Qwen3_5MoeTextConfig`), without the vision tower. Modules of multi-token prediction in published
checkpoints are not loaded (`_keys_to_ignore_on_load_unexpected`); Megatron's option `mtp_num_layers` adds them.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, GatedDeltaNet, LayerKind, Mlp, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, mlp, rotated_dims, top_k

__all__ = ["FAMILY"]

_HEAD_DIM, _SHARE, _INTERVAL = 256, 0.25, 4
"""Defaults of all three configurations: size of a head, rotated share of it, one layer of so many has attention."""


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with one of the three configurations; InputError for values that are not modelled."""
    config.refuse("attention_bias")
    family = str(config.fields["model_type"])
    whole = attention(config, qk_norm=True, head_dim=_HEAD_DIM)
    rotated = rotated_dims(config, "partial_rotary_factor", whole.head_dim, _share(config))
    mixers: dict[str, Attention | GatedDeltaNet] = {
        "full_attention": replace(whole, gated=True, rotated=rotated),
        "linear_attention": _delta_net(config, joint=family == "qwen3_next")}
    kinds = [_layer(family, mixers[kind], feed_forward, rotated)
             for kind, feed_forward in zip(_types(config), _feed_forwards(config, family), strict=True)]
    return chain(config, family, kinds, rotated, config.integer("mtp_num_layers", default=0, least=0))


def _share(config: Config) -> float:
    rope = config.fields.get("rope_parameters")
    given = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return float(given) if isinstance(given, int | float) else config.fraction("partial_rotary_factor", _SHARE)


def _types(config: Config) -> list[str]:
    """Type of each layer: as listed, else attention in every `full_attention_interval`-th."""
    count, known = config.integer("num_hidden_layers"), ("linear_attention", "full_attention")
    listed = config.fields.get("layer_types")
    if listed is None:
        interval = config.integer("full_attention_interval", default=_INTERVAL)
        return [known[(i + 1) % interval == 0] for i in range(count)]
    if not isinstance(listed, list) or len(listed) != count or any(one not in known for one in listed):
        raise config.fail("layer_types", f"expected a list of {count} types, each {' or '.join(known)}, got {listed!r}")
    return listed


def _delta_net(config: Config, *, joint: bool) -> GatedDeltaNet:
    config.choice("hidden_act", ("silu",))
    keys = config.integer("linear_num_key_heads", default=16)
    values = config.integer("linear_num_value_heads", default=32)
    if values % keys:
        raise config.fail("linear_num_value_heads", f"expected a multiple of {keys} key heads, got {values}")
    return GatedDeltaNet(config.integer("hidden_size"), keys, values,
                         config.integer("linear_key_head_dim", default=128),
                         config.integer("linear_value_head_dim", default=128),
                         config.integer("linear_conv_kernel_dim", default=4), joint)


def _feed_forwards(config: Config, family: str) -> list[Mlp | Moe]:
    """SwiGLU in the dense family; else experts, but for Qwen3-Next's layers that are listed or skipped as dense."""
    count = config.integer("num_hidden_layers")
    if family == "qwen3_5_text":
        return [mlp(config)] * count
    experts = config.integer("num_experts")
    normalised = config.boolean("norm_topk_prob", default=True) if family == "qwen3_next" else True
    sparse = Moe(config.integer("hidden_size"), experts, top_k(config, experts),
                 config.integer("moe_intermediate_size"), config.integer("shared_expert_intermediate_size"), gated=True,
                 router="softmax", normalised=normalised, shared_gate=True)
    dense = config.fields.get("mlp_only_layers") or []
    step = config.integer("decoder_sparse_step", default=1)
    if family != "qwen3_next" or (step == 1 and not dense):
        return [sparse] * count
    if not isinstance(dense, list):
        raise config.fail("mlp_only_layers", f"expected a list of layer numbers, got {dense!r}")
    return [mlp(config) if i in dense or (i + 1) % step else sparse for i in range(count)]


def _layer(family: str, mixer: Attention | GatedDeltaNet, feed_forward: Mlp | Moe, rotated: int) -> LayerKind:
    linear = isinstance(mixer, GatedDeltaNet)
    sparse = "moe_" * isinstance(feed_forward, Moe)
    return LayerKind(f"{sparse}{'delta_net' if linear else 'decoder'}", family, mixer.hidden, (
        Branch("input_layernorm", "linear_attn" if linear else "self_attn", mixer),
        Branch("post_attention_layernorm", "mlp", feed_forward)), tables=rotated if linear else 0)


FAMILY = ModelFamily(architecture, further_fields=("layer_types",))
