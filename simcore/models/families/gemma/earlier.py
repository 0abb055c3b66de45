"""Gemma, Gemma 2 and the text part of Gemma 3; the later two: a norm before and one behind each block, some windows.

Gemma (`models/gemma` of transformers 5.23) is Llama with a GELU MLP, other norms and a scaled embedding. The later ones
are as transformers 5.23 `models/gemma2` and `models/gemma3` (`Gemma3ForCausalLM`). Without `layer_types` every second
layer of Gemma 2 slides, the even ones (from 0), and all but every sixth of Gemma 3, or what `sliding_window_pattern`
says. Gemma 3 norms each head of query and key and has rotary tables of both kinds of layers.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, Embedding, Head, LayerKind, Mlp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, check_fair_heads, decoder_layer

__all__ = ["FAMILY"]


_SLIDING, _FULL = "sliding_attention", "full_attention"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GemmaConfig`, `Gemma2Config` or `Gemma3TextConfig`.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    config.refuse("attention_bias", "use_bidirectional_attention")
    if family == "gemma":
        return _first(config)
    check_fair_heads(config)
    config.choice("hidden_activation", ("gelu_pytorch_tanh",))
    window, types = config.integer("sliding_window", default=4096), _types(config, family)
    tables = tuple(dict.fromkeys(types)) if family == "gemma3_text" else ("all",)
    passing = config.integer("head_dim", default=256) * (len(tables) - 1)
    kinds = {_SLIDING: _layer(config, family, window, passing), _FULL: _layer(config, family, 0, passing)}
    made = chain(config, family, [kinds[name] for name in types], config.integer("head_dim", default=256),
                 window=window if _SLIDING in types else 0, tied=True)
    return replace(made, parts=_around(config, family, made, len(tables) - 1), buffers=tuple(
        (f"model.rotary_emb.{name}", size) for name in tables for _, size in made.buffers))


def _around(config: Config, family: str, made: Architecture, further: int) -> tuple[tuple[str, LayerKind], ...]:
    """The parts with a scaled embedding that makes `further` tables, and logits below a cap if there is one."""
    (path, stem), *others = made.parts
    assert isinstance(stem.block, Embedding)
    first = (path, replace(stem, scaled=True, block=replace(stem.block, further_dim=further * stem.block.rotary_dim)))
    caps = config.fields.get("final_logit_softcapping", 30.0 if family == "gemma2" else None) is not None
    return first, *((path, replace(kind, block=replace(kind.block, capped=caps)) if isinstance(kind.block, Head) else
                     kind) for path, kind in others)


def _first(config: Config) -> Architecture:
    """Gemma's layers. Older configurations say "gelu", which `GemmaConfig` takes for its approximation by tanh."""
    config.choice("hidden_act", ("gelu_pytorch_tanh", "gelu"))
    mixer = attention(config, head_dim=256)
    mlp = Mlp(mixer.hidden, config.integer("intermediate_size"), gated=True, gelu=True)
    made = chain(config, "gemma", [decoder_layer("gemma", mixer, mlp)] * config.integer("num_hidden_layers"),
                 mixer.head_dim, tied=True)
    (path, stem), *others = made.parts
    return replace(made, parts=((path, replace(stem, scaled=True)), *others))


def _types(config: Config, family: str) -> tuple[str, ...]:
    count = config.integer("num_hidden_layers", default=26)
    period = 2 if family == "gemma2" else config.integer("sliding_window_pattern", default=6)
    usual = tuple(_SLIDING if (i + 1) % period else _FULL for i in range(count))
    return config.names("layer_types", usual, (_SLIDING, _FULL))


def _layer(config: Config, family: str, window: int, passing: int) -> LayerKind:
    """`passing`: columns of the rotary tables of layers of the other type."""
    mixer = _attention(config, family, window)
    mlp = Mlp(mixer.hidden, config.integer("intermediate_size"), gated=True, gelu=True)
    return LayerKind("decoder", family, mixer.hidden, (
        Branch("input_layernorm", "self_attn", mixer, behind="post_attention_layernorm"),
        Branch("pre_feedforward_layernorm", "mlp", mlp, behind="post_feedforward_layernorm")), tables=passing)


def _attention(config: Config, family: str, window: int) -> Attention:
    """`head_dim` has a default of its own, and Gemma 2 caps scores unless told otherwise."""
    caps = config.fields.get("attn_logit_softcapping", 50.0 if family == "gemma2" else None) is not None
    plain = attention(config, qk_norm=family == "gemma3_text", window=window, head_dim=256)
    return replace(plain, capped=caps)


FAMILY = ModelFamily(architecture, further_fields=(
    "sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping"))
