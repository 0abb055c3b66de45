"""Model of Megatron's arguments: the family whose layers they describe, and its sizes as overrides of a preset.

[Note: families]
A GPT without anything that GPT-2's family lacks is GPT-2 with changes in Megatron's words. Latent attention with norms
between its projections is DeepSeek's: V3 routes by sigmoid, V2 by a softmax before the choice of experts (--moe-router-
pre-softmax); without norms, or with a softmax of the chosen ones alone, it is a GPT in Megatron's words. Heads that do
not add up to the hidden size, norms of query and key beside RMSNorm, SwiGLU and rope, or biases of query, key and value
alone make it a Llama, Qwen or Mixtral. A pattern of layers is a Nemotron-H. Anything else is refused by the name of its
argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from simcore.recipes.megatron.fields import Fields, Setting, Writer
from simcore.recipes.megatron.hybrid import write_hybrid
from simcore.recipes.megatron.patterns import expert_layers
from simcore.recipes.megatron.refused import refuse_shape

__all__ = ["write_model"]

_GPT2: Final = "gpt2"
_READ_LATER: Final = ("softmax", "window", "variant", "every")
"""Settings that are refused or listed where they are not those of GPT-OSS, or of a GPT in Megatron's words."""
_DELTA_NET: Final = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
                     "linear_conv_kernel_dim")


@dataclass(frozen=True)
class _Gpt:
    """Settings of a decoder without a pattern of layers."""

    writer: Writer

    def __getattr__(self, name: str) -> Setting[Any]:
        return _READ[name](self.writer.fields)

    def write(self, **overrides: Setting[Any] | tuple[Any, ...]) -> None:
        """Writes overrides: the value of a setting, or (value, settings that it follows from)."""
        for name, given in overrides.items():
            value, *settings = given if isinstance(given, tuple) else (given.value, given)
            self.writer.write(f"model.overrides.{name}", value, *settings)

    def write_other(self, usual: Any, **overrides: Setting[Any]) -> None:
        """Writes overrides that differ from what the preset has."""
        for name, setting in overrides.items():
            self.writer.write_other(f"model.overrides.{name}", setting.value, usual, setting)


def _number(name: str) -> Callable[[Fields], Setting[Any]]:
    return lambda fields: fields.integer(name)


def _flag(name: str) -> Callable[[Fields], Setting[Any]]:
    return lambda fields: fields.flag(name)


def _text(name: str) -> Callable[[Fields], Setting[Any]]:
    return lambda fields: fields.text(name)


def _share(name: str) -> Callable[[Fields], Setting[Any]]:
    return lambda fields: fields.number(name)


def _not(name: str) -> Callable[[Fields], Setting[Any]]:
    def read(fields: Fields) -> Setting[Any]:
        setting = fields.flag(name)
        return Setting(name, not setting.value, setting.taken)
    return read


def _layers(fields: Fields) -> Setting[Any]:
    layers, encoder = fields.integer("num_layers"), fields.integer("encoder_num_layers")
    return Setting("num_layers", layers.value or encoder.value, (*layers.taken, *encoder.taken))


def _groups(fields: Fields) -> Setting[Any]:
    """Groups of keys and values; as many as heads without --group-query-attention."""
    switch, groups, heads = (fields.flag("group_query_attention"), fields.integer("num_query_groups"),
                             fields.integer("num_attention_heads"))
    return Setting("num_query_groups", groups.value if switch.value else heads.value, (*switch.taken, *groups.taken))


def _ffn(fields: Fields) -> Setting[Any]:
    """Four times the hidden size, two thirds of that with SwiGLU (`validate_args`)."""
    given, hidden, gated = fields.integer("ffn_hidden_size"), fields.integer("hidden_size"), fields.flag("swiglu")
    if given.value or not hidden.value:
        return given
    size = int(4 * hidden.value * 2 / 3 / 64) * 64 if gated.value else 4 * hidden.value
    return Setting("ffn_hidden_size", size, given.taken)


def _head_dim(fields: Fields) -> Setting[Any]:
    given, hidden, heads = (fields.integer("kv_channels"), fields.integer("hidden_size"),
                            fields.integer("num_attention_heads"))
    return Setting("kv_channels", given.value or (hidden.value or 0) // max(1, heads.value or 1), given.taken)


def _expert_ffn(fields: Fields) -> Setting[Any]:
    given = fields.integer("moe_ffn_hidden_size")
    return given if given.value else Setting("moe_ffn_hidden_size", _ffn(fields).value, _ffn(fields).taken)


def _shared_ffn(fields: Fields) -> Setting[Any]:
    given = fields.integer("moe_shared_expert_intermediate_size")
    return Setting(given.name, given.value or 0, given.taken)


def _positions(fields: Fields) -> Setting[Any]:
    """--use-rotary-position-embeddings is an old word for rope; yarn scales the frequencies of rope."""
    kind, old = fields.text("position_embedding_type"), fields.flag("use_rotary_position_embeddings")
    value = "rope" if old.value or kind.value == "yarn" else kind.value
    return Setting("position_embedding_type", value, (*kind.taken, *old.taken))


_READ: Final[dict[str, Callable[[Fields], Setting[Any]]]] = {
    "layers": _layers, "hidden": _number("hidden_size"), "heads": _number("num_attention_heads"), "groups": _groups,
    "ffn": _ffn, "head_dim": _head_dim, "length": _number("max_position_embeddings"),
    "tied": _not("untie_embeddings_and_output_weights"), "norm": _text("normalization"), "biased":
    _flag("add_bias_linear"), "qkv_biased": _flag("add_qkv_bias"), "positions": _positions, "gated": _flag("swiglu"),
    "squared": _flag("squared_relu"), "quick": _flag("quick_geglu"), "qk_norm": _flag("qk_layernorm"),
    "attention_dropout": _share("attention_dropout"), "dropout": _share("hidden_dropout"),
    "latent": _flag("multi_latent_attention"), "experts": _number("num_experts"), "topk": _number("moe_router_topk"),
    "expert_ffn": _expert_ffn, "shared_ffn": _shared_ffn, "shared_gate": _flag("moe_shared_expert_gate"),
    "score": _text("moe_router_score_function"), "early": _flag("moe_router_pre_softmax"),
    "further": _number("mtp_num_layers"), "q_rank": _number("q_lora_rank"),
    "kv_rank": _number("kv_lora_rank"), "qk_dim": _number("qk_head_dim"), "rope_dim": _number("qk_pos_emb_head_dim"),
    "v_dim": _number("v_head_dim"), "softmax": _text("softmax_type"), "window": _text("window_size"),
    "expert_groups": _number("moe_router_num_groups"), "chosen_groups": _number("moe_router_group_topk"),
    "variant": _text("experimental_attention_variant"), "every": _text("linear_attention_freq"),
    "output_gate": _flag("attention_output_gate"), "oss": _flag("enable_gpt_oss"),
    "frequency": _text("moe_layer_freq"), "narrow": _number("moe_latent_size")}


def write_model(writer: Writer) -> None:
    """Writes the model, all but its vocabulary, or refuses it by name."""
    if refuse_shape(writer):
        return
    gpt, fields = _Gpt(writer), writer.fields
    encoder = fields.integer("encoder_num_layers")
    if encoder.taken and fields.integer("num_layers").taken:
        writer.draft.fail(encoder.taken[0].where, "cannot have both num-layers and encoder-num-layers specified "
                                                  "(megatron/training/arguments.py, validate_args)")
    share = fields.number("rotary_percent")
    if share.value in (None, 1):
        writer.idle("the whole head is rotated", share)
    else:
        writer.unmodelled("the whole head is rotated here", share)
    if fields.text("hybrid_layer_pattern").value or fields.text("hybrid_override_pattern").value:
        _refuse_variant(gpt)
        write_hybrid(writer)
        return
    writer.idle("there is no pattern of layers", fields.flag("is_hybrid_model"))
    missing = [name for name, setting in (("--num-layers", gpt.layers), ("--hidden-size", gpt.hidden),
                                          ("--num-attention-heads", gpt.heads)) if not setting.value]
    if missing:
        writer.draft.fail(writer.draft.path, f"{', '.join(missing)}: missing, so the model is not known (a checkpoint "
                                             "may have it; its arguments are not read)")
        return
    family = _family(gpt)
    if gpt.narrow.value:
        writer.refuse("experts of a latent width in a decoder without a pattern of layers", gpt.narrow)
    if family is not None:
        writer.draft.infer("model.config", family[0], family[1], *gpt.layers.taken)
        if family[0] != _GPT2:
            _refuse_variant(gpt)
        family[2](gpt)
        writer.use(*(read(fields) for name, read in _READ.items() if name not in _READ_LATER),
                   why=f"as the layers of {family[0]} have it")


def _family(gpt: _Gpt) -> tuple[str, str, Callable[[_Gpt], None]] | None:
    """Preset, why, and what writes its overrides; None if it was refused. See [Note: families]."""
    rotary = gpt.norm.value == "RMSNorm" and gpt.gated.value and gpt.positions.value == "rope"
    if gpt.oss.value or gpt.softmax.value == "learnable":
        return "gpt-oss-20b", "sinks of attention (--softmax-type learnable) are GPT-OSS's", _write_oss
    if gpt.latent.value and gpt.qk_norm.value and gpt.norm.value == "RMSNorm" and gpt.gated.value and not (
            gpt.biased.value):
        if not gpt.experts.value or gpt.score.value == "sigmoid":
            return "deepseek-v3", "latent attention, RMSNorm and SwiGLU are DeepSeek's", _write_deepseek
        if gpt.early.value and gpt.score.value == "softmax":
            return "deepseek-v2", "a softmax before the choice of experts is DeepSeek-V2's", _write_deepseek
    qwen = gpt.qk_norm.value and rotary and not gpt.biased.value
    plain = not gpt.qkv_biased.value and (gpt.latent.value or (
        not (qwen and not gpt.variant.value) and gpt.head_dim.value * gpt.heads.value == gpt.hidden.value))
    if plain and not gpt.quick.value:
        return _GPT2, "a decoder in Megatron's words", _write_gpt
    if not rotary or gpt.biased.value or gpt.latent.value or gpt.quick.value:
        _refuse(gpt)
        return None
    return _rotary_family(gpt)


def _refuse_variant(gpt: _Gpt) -> None:
    """Refuses mixers and gates that only a GPT in Megatron's words has."""
    if gpt.variant.value:
        gpt.writer.refuse("linear or sparse attention", gpt.variant, gpt.every)
    else:
        gpt.writer.idle("no variant of attention is named", gpt.every, gpt.variant)
    if gpt.output_gate.value:
        gpt.writer.refuse("a gate of the attention's output", gpt.output_gate)


def _refuse(gpt: _Gpt) -> None:
    """Refuses a combination that no family has."""
    odd = [setting for setting in (gpt.qkv_biased, gpt.qk_norm, gpt.quick, gpt.shared_gate) if setting.value]
    if gpt.head_dim.value * gpt.heads.value != gpt.hidden.value:
        odd.append(gpt.head_dim)
    gpt.writer.refuse("no family of models has this together with the other arguments of the model (served with "
                      "RMSNorm, SwiGLU, rope and no biases)", *odd)


def _rotary_family(gpt: _Gpt) -> tuple[str, str, Callable[[_Gpt], None]] | None:
    """A Qwen, Llama or Mixtral: RMSNorm, SwiGLU, rotary positions."""
    experts = bool(gpt.experts.value)
    if gpt.qk_norm.value and not gpt.qkv_biased.value:
        rule = "norms of query and key are Qwen3's"
        return ("qwen3-30b-a3b" if experts else "qwen3-8b"), rule, _write_qwen
    if gpt.qkv_biased.value and not gpt.qk_norm.value:
        rule = "biases of query, key and value alone are Qwen2's"
        return ("qwen1.5-moe-a2.7b" if experts else "qwen2.5-7b"), rule, _write_qwen
    if gpt.qk_norm.value or gpt.shared_gate.value:
        _refuse(gpt)
        return None
    return ("mixtral-8x7b" if experts else "llama-3-8b"), "a width of heads of its own", _write_llama


def _write_gpt(gpt: _Gpt) -> None:
    """GPT-2 has biases, LayerNorm, learned positions and GELU; what else a model has is written in Megatron's words."""
    gpt.write(n_embd=gpt.hidden, n_layer=gpt.layers, n_head=gpt.heads, n_inner=gpt.ffn, n_positions=gpt.length,
              tie_word_embeddings=gpt.tied, attn_pdrop=gpt.attention_dropout, resid_pdrop=gpt.dropout,
              embd_pdrop=gpt.dropout)
    if gpt.squared.value and (gpt.biased.value or gpt.gated.value or gpt.experts.value):
        gpt.writer.refuse("squared ReLU of a GPT with biases, a gate or experts", gpt.squared)
    elif gpt.squared.value:
        gpt.writer.write("model.overrides.activation_function", "relu2", gpt.squared)
    else:
        gpt.writer.use(gpt.squared, why="GELU, as without it")
    gpt.write_other("LayerNorm", normalization=gpt.norm)
    gpt.write_other("learned_absolute", position_embedding_type=gpt.positions)
    gpt.write_other(gpt.heads.value, num_query_groups=gpt.groups)
    gpt.write_other(usual=True, add_bias_linear=gpt.biased)
    gpt.write_other(usual=False, swiglu=gpt.gated, qk_layernorm=gpt.qk_norm, multi_latent_attention=gpt.latent,
                    attention_output_gate=gpt.output_gate, moe_shared_expert_gate=gpt.shared_gate)
    _write_delta_net(gpt)
    gpt.writer.write_other("model.overrides.mtp_num_layers", gpt.further.value or 0, 0, gpt.further)
    _refuse_repeated(gpt)
    gpt.writer.use(gpt.head_dim, why="the width of the stream over the heads, or the family's own")
    if gpt.latent.value:
        _write_latent(gpt)
    if not gpt.experts.value:
        return
    dense = _leading_dense(gpt)
    gpt.write(n_routed_experts=gpt.experts, num_experts_per_tok=gpt.topk, moe_intermediate_size=gpt.expert_ffn,
              moe_shared_expert_intermediate_size=gpt.shared_ffn)
    gpt.writer.write_other("model.overrides.first_k_dense_replace", dense, 0, gpt.frequency)
    gpt.write_other("softmax", moe_router_score_function=gpt.score)


def _write_delta_net(gpt: _Gpt) -> None:
    """Gated delta nets in all layers but one of so many (--linear-attention-freq); another variant is refused."""
    every = str(gpt.every.value or "")
    if not gpt.variant.value:
        gpt.writer.idle("no variant of attention is named", gpt.every, gpt.variant)
    elif gpt.variant.value != "gated_delta_net" or gpt.latent.value or gpt.further.value:
        gpt.writer.refuse("linear or sparse attention but for gated delta nets beside ordinary attention", gpt.variant,
                          gpt.every)
    elif not every.isdigit() or int(every) < 1:
        gpt.writer.refuse("gated delta nets in layers that are listed one by one", gpt.every, gpt.variant)
    else:
        gpt.writer.write("model.overrides.linear_attention_freq", int(every), gpt.every, gpt.variant)
        gpt.write(**{name: Setting(name, one.value, one.taken) for name in _DELTA_NET
                     for one in (gpt.writer.fields.integer(name),)})


def _refuse_repeated(gpt: _Gpt) -> None:
    """Refuses one layer of multi-token prediction for several depths (d98e8a64 core multi_token_prediction.py:1831)."""
    repeats = gpt.writer.fields.flag("mtp_use_repeated_layer")
    if repeats.value and (gpt.further.value or 0) > 1:
        gpt.writer.refuse("one layer of multi-token prediction for all depths", repeats)
    else:
        gpt.writer.idle("a layer for each depth, of which there is at most one, or off", repeats)


def _write_latent(gpt: _Gpt) -> None:
    gpt.write(q_lora_rank=(gpt.q_rank.value or None, gpt.q_rank), kv_lora_rank=gpt.kv_rank, qk_nope_head_dim=gpt.qk_dim,
              qk_rope_head_dim=gpt.rope_dim, v_head_dim=gpt.v_dim)


def _leading_dense(gpt: _Gpt) -> int:
    """Dense layers before those with experts; another order is refused."""
    layers = expert_layers(str(gpt.frequency.value), gpt.layers.value)
    dense = 0 if layers is None or 1 not in layers else layers.index(1)
    if layers is None:
        gpt.writer.refuse("expected a number, or a list such as [0]*3+[1]*58 of as many layers", gpt.frequency)
    elif 0 in layers[dense:]:
        gpt.writer.refuse("dense layers behind the first one with experts", gpt.frequency)
    return dense


def _write_deepseek(gpt: _Gpt) -> None:
    """DeepSeek has norms between the projections of latent attention, and experts beside shared ones."""
    _refuse_odd(gpt, gpt.squared, gpt.quick, gpt.shared_gate, gpt.qkv_biased)
    experts = bool(gpt.experts.value)
    dense = _leading_dense(gpt) if experts else gpt.layers.value
    gpt.write(hidden_size=gpt.hidden, intermediate_size=gpt.ffn, num_hidden_layers=gpt.layers,
              first_k_dense_replace=(dense, gpt.frequency), num_attention_heads=gpt.heads,
              num_key_value_heads=(gpt.heads.value, gpt.heads), tie_word_embeddings=gpt.tied,
              max_position_embeddings=gpt.length)
    _write_latent(gpt)
    if gpt.further.value:
        gpt.write(mtp_num_layers=gpt.further)
    _refuse_repeated(gpt)
    if experts:
        ffn, shared = gpt.expert_ffn.value, gpt.shared_ffn.value
        gpt.write(n_routed_experts=gpt.experts, num_experts_per_tok=gpt.topk, moe_intermediate_size=gpt.expert_ffn,
                  n_shared_experts=(shared // max(1, ffn), gpt.shared_ffn),
                  n_group=(gpt.expert_groups.value or 1, gpt.expert_groups),
                  topk_group=(gpt.chosen_groups.value or 1, gpt.chosen_groups))
        if shared % max(1, ffn):
            gpt.writer.refuse("a shared expert whose width is no multiple of an expert's", gpt.shared_ffn)


def _write_qwen(gpt: _Gpt) -> None:
    """Qwen2 has biases on query, key and value, Qwen3 norms over the heads of query and key."""
    _write_rotary(gpt)
    _refuse_odd(gpt, gpt.squared, gpt.quick)
    if not gpt.experts.value:
        return
    gpt.write(num_experts=gpt.experts, num_experts_per_tok=gpt.topk, moe_intermediate_size=gpt.expert_ffn)
    layers = expert_layers(str(gpt.frequency.value), gpt.layers.value)
    if layers is None:
        gpt.writer.refuse("expected a number, or a list such as [0]*3+[1]*58 of as many layers", gpt.frequency)
    elif 0 in layers:
        gpt.write(mlp_only_layers=([number for number, has in enumerate(layers) if not has], gpt.frequency),
                  decoder_sparse_step=(1, gpt.frequency))
    if gpt.qkv_biased.value and gpt.shared_gate.value:
        gpt.write(shared_expert_intermediate_size=gpt.shared_ffn)
    elif gpt.shared_ffn.value or gpt.qkv_biased.value:
        gpt.writer.refuse("Qwen's experts have a shared expert with a gate (Qwen2) or none (Qwen3)", gpt.shared_ffn)
    _expect_softmax(gpt)


def _write_llama(gpt: _Gpt) -> None:
    """Llama, or Mixtral, whose experts have the width of an MLP."""
    _write_rotary(gpt)
    _refuse_odd(gpt, gpt.squared, gpt.quick, gpt.shared_gate)
    if not gpt.experts.value:
        return
    gpt.write(num_local_experts=gpt.experts, num_experts_per_tok=gpt.topk)
    gpt.writer.write("model.overrides.intermediate_size", gpt.expert_ffn.value, gpt.expert_ffn)
    if gpt.shared_ffn.value:
        gpt.writer.refuse("Mixtral's layers have no shared expert", gpt.shared_ffn)
    if _leading_dense(gpt):
        gpt.writer.refuse("dense layers of a Mixtral", gpt.frequency)
    _expect_softmax(gpt)


def _write_oss(gpt: _Gpt) -> None:
    """GPT-OSS: sinks, a window in every second layer, experts with biases (core `models/gpt/gpt_layer_specs.py`)."""
    _write_rotary(gpt)
    _refuse_odd(gpt, gpt.squared, gpt.shared_gate)
    gpt.writer.use(gpt.softmax, why="sinks, as gpt-oss-20b has them")
    window, skip = gpt.window, gpt.writer.fields.text("window_attn_skip_freq")
    size = str(window.value or "128,0").strip("()").split(",")[0].strip()
    if not size.isdigit() or str(skip.value or 2) != "2":
        gpt.writer.refuse("expected a window A,0 in every second layer", window, skip)
        return
    gpt.write(sliding_window=(int(size) + 1 if window.value else 128, window), num_local_experts=gpt.experts,
              num_experts_per_tok=gpt.topk)
    gpt.writer.write("model.overrides.intermediate_size", gpt.expert_ffn.value, gpt.expert_ffn)
    gpt.writer.use(skip, why="every second layer, as gpt-oss-20b has it")


def _write_rotary(gpt: _Gpt) -> None:
    _refuse_odd(gpt)
    gpt.write(hidden_size=gpt.hidden, intermediate_size=gpt.ffn, num_hidden_layers=gpt.layers,
              num_attention_heads=gpt.heads, num_key_value_heads=gpt.groups, head_dim=gpt.head_dim,
              tie_word_embeddings=gpt.tied, max_position_embeddings=gpt.length)
    if gpt.further.value:
        gpt.writer.refuse("modules of multi-token prediction of this family", gpt.further)


def _refuse_odd(gpt: _Gpt, *odd: Setting[Any]) -> None:
    """Refuses settings that the family's layers lack, where they are on, and dropout."""
    for setting in odd:
        if setting.value:
            gpt.writer.refuse("no family of models has this together with the other arguments of the model", setting)
    for setting in (gpt.dropout, gpt.attention_dropout):
        if setting.value:
            gpt.writer.refuse(f"dropout {setting.value} in layers of this family", setting)


def _expect_softmax(gpt: _Gpt) -> None:
    if gpt.score.value != "softmax":
        gpt.writer.refuse("a router of this family by another function than softmax", gpt.score)
