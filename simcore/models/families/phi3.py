"""Microsoft's Phi: Phi-1.5 and 2 (`models/phi` of transformers 5.23), Phi-3 and Phi-4 (`models/phi3`).

The first two have attention and a GELU MLP beside each other behind one LayerNorm, biases everywhere, the head too, and
dropout of what both add. The later ones are Llama's layers with query, key and value in one matrix, gate and up in
another; every layer slides or none does. A part of each head may be rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simcore.models.blocks import Branch, Embedding, FinalNorm, Head, LayerKind, Mlp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `PhiConfig` or `Phi3Config`; InputError for values that are not modelled."""
    if config.fields["model_type"] == "phi":
        return _first(config)
    for field in ("resid_pdrop", "embd_pdrop", "attention_dropout"):
        if config.fraction(field, 0):
            raise config.fail(field, "dropout is not modelled yet")
    window = 0 if config.fields.get("sliding_window") is None else config.integer("sliding_window")
    mixer = attention(config, window=window)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim, _factor(config, 1))
    layer = decoder_layer("phi3", replace(mixer, rotated=rotated), mlp(config))
    return chain(config, "phi3", [layer] * config.integer("num_hidden_layers"), rotated, window=window)


def _first(config: Config) -> Architecture:
    config.choice("hidden_act", ("gelu_new",))
    config.refuse("qk_layernorm")
    mixer = attention(config, bias="all")
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim, _factor(config, 0.5))
    dense = Mlp(mixer.hidden, config.integer("intermediate_size"), gated=False, gelu=True, bias=True)
    layer = LayerKind("decoder", "phi", mixer.hidden, (
        Branch("input_layernorm", "self_attn", replace(mixer, rotated=rotated), layer_norm=True),
        Branch("", "mlp", dense)), dropout=config.fraction("resid_pdrop", 0) > 0, beside=True)
    made = chain(config, "phi", [layer] * config.integer("num_hidden_layers"), rotated,
                 norm="model.final_layernorm", last=FinalNorm(mixer.hidden, layer_norm=True))
    return replace(made, parts=tuple((path, _outside(config, kind)) for path, kind in made.parts))


def _outside(config: Config, kind: LayerKind) -> LayerKind:
    """The embedding's output may be dropped, and the head has a bias."""
    if isinstance(kind.block, Embedding):
        return replace(kind, dropout=config.fraction("embd_pdrop", 0) > 0)
    return replace(kind, block=replace(kind.block, bias=True)) if isinstance(kind.block, Head) else kind


def _factor(config: Config, default: float) -> float:
    """`partial_rotary_factor`, on its own or among the rotary parameters."""
    for name in ("rope_parameters", "rope_scaling"):
        block = config.fields.get(name)
        if isinstance(block, Mapping) and "partial_rotary_factor" in block:
            return Config(block, config.where).fraction("partial_rotary_factor", default)
    return config.fraction("partial_rotary_factor", default)


FAMILY = ModelFamily(architecture)
