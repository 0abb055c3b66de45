"""Mistral and Mixtral (transformers 5.23 `models/mistral`, `models/mixtral`), and others with a sliding window.

Mistral's layers have a window where the configuration has one: every layer or none. A configuration that does not name
`sliding_window` has 4,096 (`MistralConfig`), Mixtral's has none. StarCoder 2 (`models/starcoder2`): LayerNorm, a GELU
MLP, biases, and dropout of the embedding and of what attention and MLP add. Cohere 2 (`models/cohere2`): attention and
MLP beside each other behind a LayerNorm without a bias, written in plain operators; three layers of four slide, and
those alone rotate query and key; the logits are scaled. Ministral 3 (`models/ministral3`, the decoder of Mistral 3) has
no window unless one is named, and multiplies queries by a number of their position.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Mlp, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, top_k

__all__ = ["FAMILY"]

_DEFAULT_WINDOW = 4096


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a config of Mistral, Mixtral, StarCoder 2 or Cohere 2.

    InputError for what is not modelled.
    """
    other = {"mixtral": _mixtral, "starcoder2": _starcoder2, "cohere2": _cohere2}.get(config.fields["model_type"])
    if other:
        return other(config)
    family = str(config.fields["model_type"])
    window = _window(config, default=0 if family == "ministral3" else _DEFAULT_WINDOW)
    mixer = attention(config, window=window)
    layer = decoder_layer(family, mixer, mlp(config))
    return chain(config, family, [layer] * config.integer("num_hidden_layers"), mixer.head_dim, window=window)


def _window(config: Config, default: int) -> int:
    """0: `sliding_window: null`, all tokens are seen."""
    if config.fields.get("sliding_window", default or None) is None:
        return 0
    return config.integer("sliding_window", default=default)


def _mixtral(config: Config) -> Architecture:
    if config.fields.get("sliding_window") is not None:
        raise config.fail("sliding_window", "attention within a window is not modelled yet")
    config.choice("hidden_act", ("silu",))
    mixer, experts = attention(config), config.integer("num_local_experts")
    moe = Moe(mixer.hidden, experts, top_k(config, experts), config.integer("intermediate_size"), 0, gated=True,
              router="softmax")
    layer = decoder_layer("mixtral", mixer, moe)
    return chain(config, "mixtral", [layer] * config.integer("num_hidden_layers"), mixer.head_dim)


def _starcoder2(config: Config) -> Architecture:
    config.choice("hidden_act", ("gelu_pytorch_tanh",))
    bias = config.boolean("use_bias", default=True)
    window = 0 if config.fields.get("sliding_window") is None else config.integer("sliding_window")
    mixer = attention(config, bias="all" if bias else "", window=window)
    dense = Mlp(mixer.hidden, config.integer("intermediate_size"), gated=False, gelu=True, bias=bias)
    layer = LayerKind("decoder", "starcoder2", mixer.hidden, (
        Branch("input_layernorm", "self_attn", mixer, layer_norm=True),
        Branch("post_attention_layernorm", "mlp", dense, layer_norm=True)),
        dropout=config.fraction("residual_dropout", 0) > 0)
    made = chain(config, "starcoder2", [layer] * config.integer("num_hidden_layers"), mixer.head_dim, window=window,
                 tied=True, last=FinalNorm(mixer.hidden, layer_norm=True))
    dropped = config.fraction("embedding_dropout", 0) > 0
    if dropped and not layer.dropout:
        raise config.fail("embedding_dropout", "without residual_dropout not modelled yet")
    return replace(made, parts=tuple((path, replace(kind, dropout=dropped) if isinstance(kind.block, Embedding) else
                                      kind) for path, kind in made.parts))


_SLIDING, _FULL = "sliding_attention", "full_attention"


def _cohere2(config: Config) -> Architecture:
    """Layers of an older configuration slide but for each last of `sliding_window_pattern` (4)."""
    config.refuse("attention_bias", "use_qk_norm")
    count, every = config.integer("num_hidden_layers"), config.integer("sliding_window_pattern", default=4)
    types = config.names("layer_types", tuple(_SLIDING if (i + 1) % every else _FULL for i in range(count)),
                         (_SLIDING, _FULL))
    window, mixer = config.integer("sliding_window", default=4096), attention(config)
    kinds = {_SLIDING: _beside(config, replace(mixer, window=window)),
             _FULL: replace(_beside(config, replace(mixer, rotary=False)), tables=mixer.head_dim)}
    made = chain(config, "cohere2", [kinds[name] for name in types], mixer.head_dim,
                 window=window if _SLIDING in types else 0, tied=True,
                 last=FinalNorm(mixer.hidden, layer_norm=True, norm_bias=False))
    return replace(made, parts=tuple((path, replace(kind, scaled=True) if isinstance(kind.block, Head) else kind)
                                     for path, kind in made.parts))


def _beside(config: Config, mixer: Attention) -> LayerKind:
    return LayerKind("decoder", "cohere2", mixer.hidden, (
        Branch("input_layernorm", "self_attn", mixer, layer_norm=True, norm_bias=False),
        Branch("", "mlp", mlp(config))), beside=True)


FAMILY = ModelFamily(architecture, further_fields=("sliding_window_pattern", "use_qk_norm"))
