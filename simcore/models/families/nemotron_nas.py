"""Llama whose layers were searched for: attention or MLP may be missing, MLPs differ in width (`nemotron-nas`).

transformers 5.23 has no code for it; `modeling_decilm.py` of the model's own repository has Llama's layers. A width is
`int(2 x ffn_mult x hidden_size / 3)`, rounded up to 256 (megatron-core 0.16.1
`transformer/heterogeneous/heterogeneous_config.py`, ffn_mult_to_intermediate_size). A layer with neither attention nor
MLP does nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simcore.models.blocks import Attention, Branch, LayerKind, Mlp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import chain

__all__ = ["FAMILY"]

_FAMILY = "nemotron-nas"
_UNSERVED = ("replace_with_linear", "sparsify", "num_sink_tokens", "unshifted_sink", "window_length")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `DeciLMConfig`; InputError without `block_configs`.

    InputError too for values that are not modelled. Layers in which both parts are `no_op` are left out.
    """
    config.refuse("attention_bias", "mlp_bias")
    config.choice("hidden_act", ("silu",))
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", default=max(1, hidden // heads))
    layers = [_layer(config, place, block, Attention(hidden, heads, heads, head_dim, rotary=True))
              for place, block in enumerate(_blocks(config))]
    if not any(kind.branches for kind in layers):
        raise config.fail("block_configs", "expected a layer that does something, got no_op alone")
    made = chain(config, _FAMILY, layers, head_dim)
    return replace(made, parts=tuple((at, kind) for at, kind in made.parts if kind.branches or kind.block is not None))


def _blocks(config: Config) -> list[Any]:
    blocks = config.fields.get("block_configs")
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise config.fail("block_configs", "expected a list of blocks with attention and ffn")
    count = config.integer("num_hidden_layers", default=len(blocks))
    if count > len(blocks):
        raise config.fail("num_hidden_layers", f"expected at most the {len(blocks)} of block_configs, got {count}")
    return blocks[:count]


def _layer(config: Config, place: int, block: Mapping[str, Any], whole: Attention) -> LayerKind:
    """Both parts behind their norms, or one, or none. What is rotated in others passes by where nothing attends."""
    attention, ffn = (_part(config, place, block, name) for name in ("attention", "ffn"))
    branches = []
    if attention:
        group = _positive(config, place, attention, "n_heads_in_group")
        if group != int(group) or whole.num_heads % group:
            raise config.fail("block_configs", f"layer {place}: n_heads_in_group: expected a divisor of "
                              f"{whole.num_heads} heads, got {group}")
        mixer = replace(whole, num_kv_heads=whole.num_heads // int(group))
        branches.append(Branch("input_layernorm", "self_attn", mixer))
    if ffn:
        multiplier = _positive(config, place, ffn, "ffn_mult")
        width = int(2 * multiplier * whole.hidden / 3)
        if width < 1:
            raise config.fail("block_configs", f"layer {place}: ffn_mult: {multiplier} makes an MLP of no width")
        branches.append(Branch("post_attention_layernorm", "mlp", Mlp(whole.hidden, -(-width // 256) * 256)))
    return LayerKind("decoder", _FAMILY, whole.hidden, tuple(branches), tables=0 if attention else whole.head_dim)


def _part(config: Config, place: int, block: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Nothing where it does nothing."""
    part = block.get(name)
    if not isinstance(part, Mapping):
        raise config.fail("block_configs", f"layer {place}: {name}: expected a mapping, got {part!r}")
    for field in _UNSERVED:
        if part.get(field):
            raise config.fail("block_configs", f"layer {place}: {name}.{field}: not modelled yet")
    return {} if part.get("no_op") else part


def _positive(config: Config, place: int, part: Mapping[str, Any], field: str) -> float:
    value = part.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 2**20:
        raise config.fail("block_configs", f"layer {place}: {field}: expected a number above 0, got {value!r}")
    return value


FAMILY = ModelFamily(architecture)
