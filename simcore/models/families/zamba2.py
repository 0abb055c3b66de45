"""Zamba2: Mamba-2 layers, some of them with a transformer in front whose weights layers share (`models/zamba2`).

Hybrid layers take `num_mem_blocks` shared transformers in turn, and each adds separate adapters to them; the first
layer of each holds the weights, all its adapters with them (transformers 5.23 `Zamba2Model.get_layers`).
"""

from __future__ import annotations

from simcore.inputs.bounds import SHARED
from simcore.models.blocks import Branch, LayerKind, Mamba2, SharedTransformer
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import chain

__all__ = ["FAMILY"]

_MAMBA, _HYBRID = ("mamba", "linear_attention"), "hybrid"
_PERIOD = (_MAMBA[1],) * 5 + (_HYBRID,)
_DEFAULT = (_MAMBA[1], *_PERIOD * 7, *_PERIOD[1:], *_PERIOD[2:], _MAMBA[1], _MAMBA[1])
"""54 layers (`Zamba2Config`)."""


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Zamba2Config`; InputError for values that are not modelled."""
    config.refuse("add_bias_linear")
    config.choice("hidden_act", ("gelu",))
    types = _types(config)
    plain, num_blocks = _plain(config), config.integer("num_mem_blocks", default=1)
    hybrids = [i for i, name in enumerate(types) if name == _HYBRID]
    if len(hybrids) > SHARED:
        raise config.fail("layers_block_type", f"expected at most {SHARED} hybrid layers, got {len(hybrids):,}")
    shared = {layer: _hybrid(config, place, len(hybrids), num_blocks) for place, layer in enumerate(hybrids)}
    rotary = config.boolean("use_mem_rope", default=False)
    return chain(config, "zamba2", [shared.get(i, plain) for i in range(len(types))],
                 _head_dim(config) if rotary else 0, norm="model.final_layernorm", tied=True)


def _types(config: Config) -> tuple[str, ...]:
    count = config.integer("num_hidden_layers", default=len(_DEFAULT))
    if config.fields.get("layers_block_type") is not None:
        return config.names("layers_block_type", (_HYBRID,) * count, (*_MAMBA, _HYBRID))
    if count > len(_DEFAULT):
        raise config.fail("num_hidden_layers", f"expected at most {len(_DEFAULT)} without layers_block_type")
    return _DEFAULT[:count]


def _plain(config: Config) -> LayerKind:
    """A Mamba layer; rotary tables for hybrid layers pass by it, and are made even where no layer is hybrid."""
    rotary = config.boolean("use_mem_rope", default=False)
    return LayerKind("mamba", "zamba2", config.integer("hidden_size"), (
        Branch("input_layernorm", "mamba", _mamba(config)),), tables=_head_dim(config) if rotary else 0)


def _hybrid(config: Config, place: int, count: int, num_blocks: int) -> LayerKind:
    """The `place`-th of `count` hybrid layers."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads", default=32)
    kv_heads = config.integer("num_key_value_heads", default=heads)
    adapts = config.boolean("use_shared_attention_adapter", default=False)
    if heads % kv_heads or (adapts and kv_heads != heads):
        raise config.fail("num_key_value_heads", f"expected {'' if adapts else 'a divisor of '}{heads}, got {kv_heads}")
    block = SharedTransformer(
        hidden, heads, kv_heads, _head_dim(config), config.integer("intermediate_size", default=4 * hidden),
        config.integer("adapter_rank", default=128), tuple(range(place % num_blocks, count, num_blocks)), adapts,
        config.boolean("use_mem_rope", default=False))
    return LayerKind(_HYBRID, "zamba2", hidden, (
        Branch("mamba_decoder.input_layernorm", "mamba_decoder.mamba", _mamba(config)),), shared=block)


def _head_dim(config: Config) -> int:
    """Attention is twice as wide as the model."""
    return 2 * config.integer("hidden_size") // config.integer("num_attention_heads", default=32)


def _mamba(config: Config) -> Mamba2:
    hidden, heads = config.integer("hidden_size"), config.integer("n_mamba_heads", default=8)
    inner, groups = hidden * config.integer("mamba_expand", default=2), config.integer("mamba_ngroups", default=1)
    if inner % heads or heads % groups:
        raise config.fail("n_mamba_heads", f"expected a divisor of {inner} and a multiple of {groups} groups, got "
                          f"{heads}")
    return Mamba2(hidden, heads, inner // heads, groups, config.integer("mamba_d_state", default=64),
                  config.integer("mamba_d_conv", default=4), config.integer("chunk_size", default=256))


FAMILY = ModelFamily(architecture)
