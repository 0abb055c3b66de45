"""MiMo-V2-Flash: experts chosen by sigmoid, sinks and twice the key-value heads in layers with a window.

As transformers 5.23 `models/mimo_v2_flash`: heads of values are narrower than those of keys, and a third of a head of
keys is rotated, by tables of each kind of layer. The first layer and every sixth see all tokens, the first is dense,
where the configuration says nothing (`MiMoV2FlashConfig.__post_init__`).
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Embedding
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims
from simcore.models.families.deepseek import sigmoid_experts

__all__ = ["FAMILY"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WORDS = ("dense", "sparse")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `MiMoV2FlashConfig`; InputError for values that are not modelled."""
    config.refuse("attention_bias")
    count = config.integer("num_hidden_layers")
    types = config.names("layer_types", tuple(_FULL if i == 0 or (i + 1) % 6 == 0 else _SLIDING for i in range(count)),
                         (_FULL, _SLIDING))
    experts = config.names("mlp_layer_types", ("dense", *["sparse"] * count)[:count], _WORDS)
    rotated, mixers = _mixers(config)
    dense, sparse = mlp(config), sigmoid_experts(config)
    layers = [decoder_layer("mimo_v2_flash", mixers[kind], dense if word == "dense" else sparse)
              for kind, word in zip(types, experts, strict=True)]
    window = mixers[_SLIDING].window if _SLIDING in types else 0
    made = chain(config, "mimo_v2_flash", layers, rotated, window=window)
    names = tuple(sorted(set(types)))
    further = rotated * (len(names) - 1)
    parts = tuple((path, replace(kind, block=replace(kind.block, further_dim=further)) if isinstance(
        kind.block, Embedding) else kind) for path, kind in made.parts)
    return replace(made, parts=parts, buffers=tuple(
        (f"model.rotary_emb.{name}", size) for name in names for _, size in made.buffers))


def _mixers(config: Config) -> tuple[int, dict[str, Attention]]:
    """(rotated dimensions of a head, attention by the kind of layer)."""
    full = attention(config, head_dim=192)
    rotated = rotated_dims(config, "partial_rotary_factor", full.head_dim,
                           config.fraction("partial_rotary_factor", 0.334))
    full = replace(full, rotated=rotated, value=config.integer("v_head_dim", default=128))
    if full.num_heads % (2 * full.num_kv_heads):
        raise config.fail("num_key_value_heads", f"expected half of it to divide {full.num_heads} heads: layers with a "
                          "window have twice as many")
    return rotated, {_FULL: full, _SLIDING: replace(full, num_kv_heads=2 * full.num_kv_heads, sinks=True,
                                                    window=config.integer("sliding_window", default=129))}


FAMILY = ModelFamily(architecture, further_fields=("partial_rotary_factor", "mlp_layer_types"))
