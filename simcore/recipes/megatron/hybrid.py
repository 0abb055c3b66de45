"""Hybrids of Megatron's arguments: layers by a pattern of Mamba, attention, MLP and experts, as Nemotron-H has them."""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.megatron.fields import Setting, Writer
from simcore.recipes.megatron.patterns import HybridPattern, hybrid_pattern

__all__ = ["pattern_of", "write_hybrid"]

_KINDS: Final = "M*-E"
_PLAIN: Final = "nemotron-3-nano-30b-a3b"
_LATENT: Final = "nemotron-3-super-120b-a12b"
"""Presets whose sizes are overridden; the second has experts of a latent width."""


def pattern_of(writer: Writer) -> tuple[HybridPattern, Setting[Any]] | None:
    """Pattern of a hybrid and the setting that gives it; None for other models."""
    given, old = writer.fields.text("hybrid_layer_pattern"), writer.fields.text("hybrid_override_pattern")
    setting = Setting("hybrid_layer_pattern", given.value or old.value, (*given.taken, *old.taken))
    return (hybrid_pattern(setting.value), setting) if setting.value else None


def write_hybrid(writer: Writer) -> None:
    """Writes a model with a pattern of layers, or refuses it by name.

    Defaults of Mamba: core `transformer/transformer_config.py`; heads: 2 x hidden / head_dim (`ssm/mamba_mixer.py`).
    """
    found = pattern_of(writer)
    if found is None:
        return
    pattern, setting = found
    unknown = sorted(set("".join((pattern.letters, *pattern.further))) - set(_KINDS))
    if unknown:
        writer.refuse(f"layers {', '.join(unknown)} of the pattern (served: {', '.join(_KINDS)})", setting)
        return
    preset = _LATENT if writer.fields.integer("moe_latent_size").value else _PLAIN
    writer.draft.infer("model.config", preset, "a pattern of layers is a Nemotron-H's", *setting.taken)
    _write_sizes(writer, pattern, setting)
    _write_mamba(writer)
    if "E" in pattern.letters or any("E" in one for one in pattern.further):
        _write_experts(writer)
    elif (experts := writer.fields.integer("num_experts")).value:
        writer.refuse("experts of a hybrid whose pattern has no layer with them (E)", experts)
    _write_style(writer)
    latent = writer.fields.flag("multi_latent_attention")
    if latent.value:
        writer.refuse("latent attention in a hybrid", latent)
    _write_further(writer, pattern, setting)


def _override(writer: Writer, name: str, value: Any, *settings: Setting[Any]) -> None:
    writer.write(f"model.overrides.{name}", value, *settings)


def _write_sizes(writer: Writer, pattern: HybridPattern, setting: Setting[Any]) -> None:
    fields = writer.fields
    hidden, heads, ffn = (fields.integer("hidden_size"), fields.integer("num_attention_heads"),
                          fields.integer("ffn_hidden_size"))
    switch, groups = fields.flag("group_query_attention"), fields.integer("num_query_groups")
    wide, untied = fields.integer("kv_channels"), fields.flag("untie_embeddings_and_output_weights")
    if not hidden.value or not heads.value:
        writer.draft.fail(writer.draft.path, "--hidden-size, --num-attention-heads: missing, so the model is not known")
        return
    _override(writer, "hidden_size", hidden.value, hidden)
    _override(writer, "intermediate_size", ffn.value or 4 * hidden.value, ffn)
    _override(writer, "tie_word_embeddings", not untied.value, untied)
    _override(writer, "num_attention_heads", heads.value, heads)
    _override(writer, "num_key_value_heads", groups.value if switch.value else heads.value, groups, switch)
    _override(writer, "head_dim", wide.value or hidden.value // heads.value, wide)
    length = fields.integer("max_position_embeddings")
    _override(writer, "max_position_embeddings", length.value, length)
    _override(writer, "hybrid_override_pattern", pattern.letters, setting)
    _override(writer, "num_hidden_layers", len(pattern.letters), setting)
    writer.idle("the pattern says how many layers there are", fields.integer("num_layers"),
                fields.integer("encoder_num_layers"), fields.flag("is_hybrid_model"))


def _write_mamba(writer: Writer) -> None:
    fields = writer.fields
    groups, heads, wide, state = (fields.integer(f"mamba_{name}") for name in (
        "num_groups", "num_heads", "head_dim", "state_dim"))
    hidden = fields.integer("hidden_size").value or 0
    _override(writer, "n_groups", groups.value, groups)
    _override(writer, "mamba_num_heads", heads.value or 2 * hidden // max(1, wide.value or 1), heads)
    _override(writer, "mamba_head_dim", wide.value, wide)
    _override(writer, "ssm_state_size", state.value, state)


def _write_experts(writer: Writer) -> None:
    fields = writer.fields
    experts, topk, ffn = (fields.integer("num_experts"), fields.integer("moe_router_topk"),
                          fields.integer("moe_ffn_hidden_size"))
    shared, latent = fields.integer("moe_shared_expert_intermediate_size"), fields.integer("moe_latent_size")
    if not experts.value:
        writer.draft.fail(writer.draft.path, "--num-experts: missing, though the pattern has layers with experts")
        return
    wide = fields.integer("ffn_hidden_size") if not ffn.value else ffn
    _override(writer, "n_routed_experts", experts.value, experts)
    _override(writer, "num_experts_per_tok", topk.value, topk)
    _override(writer, "moe_intermediate_size", wide.value or 4 * (fields.integer("hidden_size").value or 0), wide)
    _override(writer, "moe_shared_expert_intermediate_size", shared.value or 0, shared)
    writer.write_other("model.overrides.moe_latent_size", latent.value or 0, 0, latent)
    if fields.flag("moe_shared_expert_gate").value:
        writer.refuse("a gate of a hybrid's shared expert", fields.flag("moe_shared_expert_gate"))


def _write_style(writer: Writer) -> None:
    """Norms, biases, activation, positions and dropout, where they differ from Nemotron-H's."""
    fields = writer.fields
    norm, biased = fields.text("normalization"), fields.flag("add_bias_linear")
    gated, squared = fields.flag("swiglu"), fields.flag("squared_relu")
    positions, old = fields.text("position_embedding_type"), fields.flag("use_rotary_position_embeddings")
    active = "swiglu" if gated.value else "relu2" if squared.value else "gelu"
    place = "model.overrides."
    writer.write_other(f"{place}normalization", norm.value, "RMSNorm", norm)
    writer.write_other(f"{place}add_bias_linear", biased.value, False, biased)  # noqa: FBT003
    writer.write_other(f"{place}mlp_hidden_act", active, "relu2", gated, squared)
    writer.write_other(f"{place}position_embedding_type", "rope" if old.value else positions.value, "none", positions,
                       old)
    for name, field in (("hidden_dropout", "hidden_dropout"), ("attention_dropout", "attention_dropout")):
        writer.write_other(f"{place}{name}", fields.number(field).value, 0, fields.number(field))


def _write_further(writer: Writer, pattern: HybridPattern, setting: Setting[Any]) -> None:
    """Modules of multi-token prediction: a pattern of layers each, or one that runs for all."""
    fields = writer.fields
    count, repeats, old = (fields.integer("mtp_num_layers"), fields.flag("mtp_use_repeated_layer"),
                           fields.text("mtp_hybrid_override_pattern"))
    further = pattern.further or ((old.value,) * (count.value or 0) if old.value else ())
    writer.use(count, old, why="no modules of multi-token prediction")
    if not further:
        writer.use(repeats, why="no modules of multi-token prediction")
        if count.value:
            writer.refuse("modules of multi-token prediction whose layers no pattern gives", count)
        return
    if len(set(further)) > 1:
        writer.refuse("modules of multi-token prediction with different layers", setting)
        return
    _override(writer, "mtp_num_layers", len(further), setting, count)
    _override(writer, "mtp_hybrid_override_pattern", further[0], setting, old)
    _override(writer, "mtp_use_repeated_layer", repeats.value, repeats)
