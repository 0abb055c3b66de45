"""EXAONE 4 and K-EXAONE: layers with a window rotate query and key, layers that see all tokens do not.

EXAONE 4 (transformers 5.23 `models/exaone4`): norms behind attention and MLP alone, and over heads of query and of key
behind all three products. Without a window (`sliding_window: null`, 1.2B) every layer rotates. K-EXAONE
(`models/exaone_moe`): the same attention behind a norm, and experts as DeepSeek-V3's but in the first
`first_k_dense_replace` layers, or where `mlp_layer_types` says dense. Megatron's option `mtp_num_layers` adds modules
of multi-token prediction, whose layer is dense, sees all tokens and rotates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.models.blocks import Attention, Branch, LayerKind, Mtp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp
from simcore.models.families.deepseek import sigmoid_experts

__all__ = ["FAMILY"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WORDS = ("dense", "sparse")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with an `Exaone4Config` or `ExaoneMoeConfig`.

    InputError for values that are not modelled.
    """
    window = 0 if config.fields.get("sliding_window", 4096) is None else config.integer("sliding_window", default=4096)
    types, mixer = _types(config, window), attention(config, qk_norm=True)
    mixers = {_FULL: replace(mixer, rotary=not window), _SLIDING: replace(mixer, window=window)}
    make = _experts if config.fields["model_type"] == "exaone_moe" else _dense
    return make(config, [mixers[kind] for kind in types], window if _SLIDING in types else 0)


def _types(config: Config, window: int) -> tuple[str, ...]:
    """Kind of each layer: `layer_types`, or each last of `sliding_window_pattern` (4) layers sees all tokens.

    Words of a pattern ("LLLG") need the list: `Exaone4Config.__post_init__` divides by it.
    """
    count = config.integer("num_hidden_layers")
    if config.fields.get("layer_types") is None:
        if not window:
            raise config.fail("layer_types", "expected the kind of each layer: without a window upstream makes none "
                              "(Exaone4Config divides by a pattern of 0)")
        every = config.integer("sliding_window_pattern", default=4)
        return tuple(_SLIDING if (i + 1) % every else _FULL for i in range(count))
    types = config.names("layer_types", (_FULL,) * count, (_SLIDING, _FULL))
    if not window and _SLIDING in types:
        raise config.fail("sliding_window", "a layer slides and there is no window")
    return types


def _dense(config: Config, mixers: Sequence[Attention], window: int) -> Architecture:
    layers = [_passing(LayerKind("decoder", "exaone4", mixer.hidden, (
        Branch("", "self_attn", mixer, behind="post_attention_layernorm"),
        Branch("", "mlp", mlp(config), behind="post_feedforward_layernorm"))), mixer) for mixer in mixers]
    return chain(config, "exaone4", layers, mixers[0].head_dim, window=window)


def _experts(config: Config, mixers: Sequence[Attention], window: int) -> Architecture:
    count, first = len(mixers), config.integer("first_k_dense_replace", default=1, least=0)
    kinds = config.names("mlp_layer_types", ("dense",) * min(first, count) + ("sparse",) * (count - first), _WORDS)
    config.choice("scoring_func", ("sigmoid",))
    named = Config({**config.fields, "n_routed_experts": config.integer("num_experts"),
                    "n_shared_experts": config.integer("num_shared_experts", default=1, least=0)}, config.where)
    dense, sparse = mlp(config), sigmoid_experts(named)
    layers = [_passing(decoder_layer("exaone_moe", mixer, dense if kind == "dense" else sparse), mixer)
              for mixer, kind in zip(mixers, kinds, strict=True)]
    made = chain(config, "exaone_moe", layers, mixers[0].head_dim,
                 config.integer("mtp_num_layers", default=0, least=0), window=window)
    further = decoder_layer("exaone_moe", replace(mixers[0], rotary=False, window=0), dense).branches
    return replace(made, parts=tuple((path, replace(kind, branches=further) if isinstance(kind.block, Mtp) else kind)
                                     for path, kind in made.parts))


def _passing(kind: LayerKind, mixer: Attention) -> LayerKind:
    """The layer, by which rotary tables pass if it rotates nothing."""
    return kind if mixer.rotary else replace(kind, tables=mixer.head_dim)


FAMILY = ModelFamily(architecture, further_fields=(
    "sliding_window_pattern", "layer_types", "first_k_dense_replace", "mlp_layer_types", "scoring_func"))
