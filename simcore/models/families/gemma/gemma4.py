"""The text part of Gemma 4, as transformers 5.23 `models/gemma4` (`Gemma4ForCausalLM`) and `models/gemma4_unified`.

All but every sixth layer slide. Whole layers have wider heads (`global_head_dim`), fewer of keys
(`num_global_key_value_heads`) and, with `attention_k_eq_v`, no projection of values: those are the keys' products
before their norm. Every head of a query, a key and a value passes a norm, that of values without a weight; both kinds
of layers have rotary tables of their own size. A number in a buffer multiplies what a layer puts out. The layers of
`gemma4_unified_text` (12B) are the same ones; only values that a configuration leaves out differ.

[Note: layers of E2B and E4B]
The last `num_kv_shared_layers` have no projections of keys and values: they take those of the last layer of their type
before them, and with `use_double_wide_mlp` an MLP twice as wide (`Gemma4TextConfig.kv_sharing_modes`). Every layer
has an input by itself, of `hidden_size_per_layer_input` columns.

[Note: experts of 26B-A4B]
With `enable_moe_block` experts stand beside each MLP, both behind a norm of the stream and before one of their own; a
third norms their sum (`Gemma4TextDecoderLayer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.models.blocks import Attention, Branch, Embedding, Head, LayerKind, Mlp, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.decoder_stem import OwnInput
from simcore.models.families.decoder import attention, chain

__all__ = ["FAMILY"]

_SLIDING, _FULL = "sliding_attention", "full_attention"
_FAMILY = "gemma4_text"
_UNIFIED = {"hidden_size_per_layer_input": 0, "sliding_window": 1024}
"""Values of a `Gemma4UnifiedTextConfig` that leaves them out, where they differ; it has no inputs of a layer at all."""


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Gemma4TextConfig` or `Gemma4UnifiedTextConfig`.

    InputError for values that are not modelled.
    """
    if config.fields.get("model_type") == "gemma4_unified_text":
        config = Config({**_UNIFIED, **config.fields}, config.where)
    _refuse(config)
    types, mixers = _types(config), {_SLIDING: _sliding(config), _FULL: _full(config)}
    used = [kind for kind in (_SLIDING, _FULL) if kind in types]
    passing = {kind: sum(mixers[other].head_dim for other in used if other != kind) for kind in used}
    size, shared = config.integer("hidden_size_per_layer_input", default=256, least=0), _shared(config, types)
    experts = _experts(config)
    layers = [_layer(mixer, (_mlp(config, borrows=mixer.borrows), experts), passing[name], OwnInput(
        size, len(types), last=place == len(types) - 1) if size else None)
        for place, (name, mixer) in enumerate(zip(types, _lending(types, mixers, shared), strict=True))]
    first = mixers[used[0]]
    made = chain(config, _FAMILY, layers, first.head_dim, window=first.window, tied=True)
    return replace(made, parts=_around(config, made, passing[used[0]]), buffers=tuple(
        (f"model.rotary_emb.{kind}_inv_freq", 2 * 4 * (mixers[kind].head_dim // 2)) for kind in sorted(used)))


def _alone(config: Config) -> Architecture:
    """The same of a model without a tower; InputError for inputs of single layers, which are made behind one."""
    made = architecture(config)
    if any(kind.own_input for _, kind in made.parts):
        raise config.fail("hidden_size_per_layer_input", "not modelled yet: another value than 0 in a model without a "
                          "vision tower")
    return made


def _shared(config: Config, types: Sequence[str]) -> int:
    """Number of layers that take keys and values of others; InputError where no layer of such a type has its own."""
    count = config.integer("num_kv_shared_layers", default=0, least=0)
    own = set(types[:len(types) - count])
    if count and (count >= len(types) or own != set(types)):
        raise config.fail("num_kv_shared_layers", "expected a layer of each type before those that share, got "
                          f"{count} of {len(types)}")
    return count


def _lending(types: Sequence[str], mixers: dict[str, Attention], shared: int) -> list[Attention]:
    """Attention of each layer, with the next user of its keys and values, for the last `shared` and those they use."""
    begin, made = len(types) - shared, [mixers[name] for name in types]
    for name in dict.fromkeys(types) if shared else ():
        lender = max(place for place in range(begin) if types[place] == name)
        users = [lender, *(place for place in range(begin, len(types)) if types[place] == name)]
        for place, above in zip(users, [*users[1:], 0], strict=True):
            made[place] = replace(made[place], borrows=place >= begin, lent=max(0, above - place))
    return made


def _mlp(config: Config, *, borrows: bool) -> Mlp:
    wide = 1 + (borrows and config.boolean("use_double_wide_mlp", default=False))
    return Mlp(config.integer("hidden_size", default=2304), wide * config.integer(
        "intermediate_size", default=9216), gated=True, gelu=True)


def _refuse(config: Config) -> None:
    """Raises InputError for what is not modelled. Attention both ways among tokens of an image changes no size."""
    config.refuse("attention_bias")
    config.choice("hidden_activation", ("gelu_pytorch_tanh",))
    if config.fields.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.fail("use_bidirectional_attention", "not modelled yet: other values than vision")


def _types(config: Config) -> tuple[str, ...]:
    """The last layer is a whole one, whatever the list says (`Gemma4TextConfig.__post_init__`)."""
    count = config.integer("num_hidden_layers", default=30)
    usual = tuple(_SLIDING if (i + 1) % 6 else _FULL for i in range(count))
    return (*config.names("layer_types", usual, (_SLIDING, _FULL))[:-1], _FULL)


def _sliding(config: Config) -> Attention:
    made = attention(config, qk_norm=True, window=config.integer("sliding_window", default=512), head_dim=256)
    return replace(made, value_norm=True)


def _full(config: Config) -> Attention:
    """`num_global_key_value_heads` is read with `attention_k_eq_v` alone."""
    is_one = config.boolean("attention_k_eq_v", default=False)
    heads = config.integer("num_global_key_value_heads", default=0, least=0) if is_one else 0
    fields = {**config.fields, "head_dim": config.integer("global_head_dim", default=512),
              "num_key_value_heads": heads or config.integer("num_key_value_heads", default=4)}
    return replace(attention(Config(fields, config.where), qk_norm=True), value_norm=True, values_from_keys=is_one)


def _experts(config: Config) -> Moe | None:
    if not config.boolean("enable_moe_block", default=False):
        return None
    count, chosen = config.integer("num_experts"), config.integer("top_k_experts")
    if chosen > count:
        raise config.fail("top_k_experts", f"expected at most {count} experts, got {chosen}")
    return Moe(config.integer("hidden_size", default=2304), count, chosen, config.integer("moe_intermediate_size"), 0,
               gated=True, gelu=True, router="scaled_softmax")


def _layer(mixer: Attention, ffn: tuple[Mlp, Moe | None], passing: int, own: OwnInput | None) -> LayerKind:
    """`ffn`: MLP and experts beside it; `passing`: columns of the rotary tables of layers of the other type."""
    mlp, experts = ffn
    behind = "post_feedforward_layernorm"
    branches = [Branch("input_layernorm", "self_attn", mixer, behind="post_attention_layernorm"),
                Branch("pre_feedforward_layernorm", "mlp", mlp, behind=f"{behind}_1" if experts else behind)]
    if experts:
        branches.append(Branch("pre_feedforward_layernorm_2", "experts", experts, behind=f"{behind}_2"))
    return LayerKind("decoder", _FAMILY, mixer.hidden, tuple(branches), tables=passing, scales_output=True,
                     own_input=own, joined=behind if experts else "")


def _around(config: Config, made: Architecture, further: int) -> tuple[tuple[str, LayerKind], ...]:
    """The parts with a scaled embedding that makes two pairs of tables, and logits below a cap if there is one."""
    (path, stem), *others = made.parts
    assert isinstance(stem.block, Embedding)
    first = (path, replace(stem, scaled=True, block=replace(stem.block, further_dim=further)))
    caps = config.fields.get("final_logit_softcapping") is not None
    return first, *((path, replace(kind, block=replace(kind.block, capped=caps)) if isinstance(kind.block, Head) else
                     kind) for path, kind in others)


FAMILY = ModelFamily(_alone, further_fields=(
    "final_logit_softcapping", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v",
    "use_double_wide_mlp", "vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size"))
