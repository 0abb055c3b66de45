"""Step 3.5: layers with a window have heads of queries of their own number, experts a shared one beside them.

As nemo-automodel 0.7.0 `components/models/step3p5` and transformers 5.23 `models/step3p7` (`Step3p7TextConfig`, whose
`model_type` is step3p5). Norms count their weights from zero. A sigmoid of a number for each head weighs what attention
puts out. Layers are whole or have a window (`layer_types`, in published files longer than the model, by its modules of
multi-token prediction, which neither builds), each with its own share of rotated dimensions. Shared experts keep what
they gate below a limit in the layers that `swiglu_limits_shared` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simcore.models.blocks import Attention, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims

__all__ = ["FAMILY"]

_FAMILY, _FULL, _SLIDING = "step3p5", "full_attention", "sliding_attention"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a Step 3.5; InputError for values that are not modelled."""
    config.refuse("attention_bias", "mlp_bias")
    config.choice("moe_router_activation", ("sigmoid",))
    if not config.boolean("use_moe_router_bias", default=False):
        raise config.fail("use_moe_router_bias", "a router without a correction of its choice is not modelled yet")
    if not config.boolean("need_fp32_gate", default=False):
        raise config.fail("need_fp32_gate", "a router that multiplies in 16 bits is not modelled yet")
    count = config.integer("num_hidden_layers")
    types = config.names("layer_types", (_FULL,) * count, (_FULL, _SLIDING))
    sparse, limits = _sparse(config, count), _numbers(config, "swiglu_limits_shared", count, 0)
    shares = _numbers(config, "partial_rotary_factors", count, 1)
    layers = []
    for place, (kind, limit, share) in enumerate(zip(types, limits, shares, strict=True)):
        mixer = _mixer(config, kind)
        mixer = replace(mixer, rotated=rotated_dims(config, "partial_rotary_factors", mixer.head_dim, share))
        if limit and place not in sparse:
            raise config.fail("swiglu_limits_shared", "a limit in a dense layer is not modelled yet")
        layers.append(decoder_layer(_FAMILY, mixer, _experts(config, clamped=bool(limit)) if place in sparse else mlp(
            config)))
    first = layers[0].branches[0].block
    assert isinstance(first, Attention)
    made = chain(config, _FAMILY, layers, first.rotated)
    # a table of frequencies in each layer, fp32, one value per pair of rotated dimensions
    return replace(made, buffers=tuple(
        (f"{path}.self_attn.rotary_emb.inv_freq", 4 * (branch.block.rotated // 2)) for path, kind in made.parts
        for branch in kind.branches if isinstance(branch.block, Attention)))


def _mixer(config: Config, kind: str) -> Attention:
    """Attention of a kind of layer; those with a window take their heads from `attention_other_setting`."""
    fields = dict(config.fields)
    fields["num_key_value_heads"] = config.integer("num_attention_groups", "num_key_value_heads")
    other = fields.get("attention_other_setting")
    if kind == _SLIDING and isinstance(other, Mapping):
        fields["num_attention_heads"] = other.get("num_attention_heads", fields.get("num_attention_heads"))
        fields["num_key_value_heads"] = other.get("num_attention_groups", fields["num_key_value_heads"])
    window = config.integer("sliding_window") if kind == _SLIDING else 0
    made = attention(Config(fields, config.where), qk_norm=True, window=window)
    return replace(made, head_gates=config.boolean("use_head_wise_attn_gate", default=False))


def _experts(config: Config, *, clamped: bool) -> Moe:
    count, chosen = config.integer("moe_num_experts", "n_routed_experts"), config.integer(
        "moe_top_k", "num_experts_per_tok")
    if chosen > count:
        raise config.fail("moe_top_k", f"expected at most {count} experts, got {chosen}")
    return Moe(config.integer("hidden_size"), count, chosen, config.integer("moe_intermediate_size"),
               config.integer("share_expert_dims", "share_expert_dim"), gated=True, router="sigmoid", clamped=clamped)


def _sparse(config: Config, count: int) -> frozenset[int]:
    """Numbers of the layers that have experts: a list, or one written with commas; without it all but the first."""
    told: Any = config.fields.get("moe_layers_enum")
    if told is None:
        return frozenset(range(1, count))
    words = told.split(",") if isinstance(told, str) else told
    if not isinstance(words, list) or not all(str(word).strip().isdigit() for word in words):
        raise config.fail("moe_layers_enum", f"expected numbers of layers, got {told!r}")
    return frozenset(int(word) for word in words)


def _numbers(config: Config, name: str, count: int, default: float) -> Sequence[float]:
    """A number of each layer from a list that may be longer; null and 0 are `default`."""
    told: Any = config.fields.get(name)
    if told is None:
        return [default] * count
    if not isinstance(told, list) or len(told) < count or any(
            isinstance(one, bool) or not isinstance(one, int | float | None) for one in told):
        raise config.fail(name, f"expected {count} or more numbers, got {told!r}")
    return [one or default for one in told[:count]]


FAMILY = ModelFamily(architecture, further_fields=("attention_other_setting", "share_expert_dims"))
