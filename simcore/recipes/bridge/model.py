"""Model of Megatron-Bridge's configurations: its Hugging Face name, or the sizes of its provider."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from simcore.models.blocks import Attention, FinalNorm, Indexer, LatentAttention, Mlp, Moe
from simcore.models.graph import architecture_of, model_config
from simcore.models.names import find
from simcore.recipes.bridge.named import COMMIT
from simcore.recipes.bridge.provider import read_provider
from simcore.recipes.bridge.rows import give_up
from simcore.recipes.bridge.towers.builds import in_16_bits, write_own_head
from simcore.recipes.bridge.towers.omni import read_fields
from simcore.recipes.bridge.vocabulary import read_vocabulary
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["TURNED_APART", "read_model"]

_HYBRID: Final = {
    "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads", "ffn_hidden_size": "intermediate_size",
    "num_query_groups": "num_key_value_heads", "kv_channels": "head_dim", "mamba_num_heads": "mamba_num_heads",
    "mamba_head_dim": "mamba_head_dim", "mamba_state_dim": "ssm_state_size", "mamba_num_groups": "n_groups",
    "mamba_chunk_size": "chunk_size",
    "num_moe_experts": "n_routed_experts", "moe_router_topk": "num_experts_per_tok",
    "moe_ffn_hidden_size": "moe_intermediate_size", "moe_latent_size": "moe_latent_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size"}
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "num_moe_experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "moe_router_topk": ("num_experts_per_tok",), "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "ffn_hidden_size": ("intermediate_size",), "num_query_groups": ("num_key_value_heads",), "hidden_size": (),
    "num_attention_heads": (), "attention_dropout": ("attention_dropout",), "hidden_dropout": ()}
"""Fields of Hugging Face's configurations by the provider's (models/conversion/model_bridge.py:455), of which a model
has one; a width, or number of heads, changes others that the provider has from the configuration."""
TURNED_APART: Final = ("qwen/", "zai-org/glm-4", "google/gemma", "lgai-exaone/", "mistralai/ministral-3")
"""Models whose converters leave apply_rope_fusion as core has it; Llama's and Nemotron's switch it on."""
_SHAPES: Final = ("gated_linear_unit", "qk_layernorm", "add_bias_linear", "add_qkv_bias", "multi_latent_attention",
                  "moe_shared_expert_gate", "normalization", "share_embeddings_and_output_weights")
_SIZES: Final = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
                 "moe_shared_expert_intermediate_size", "activation_func", "moe_layer_freq", "window_size",
                 "window_attn_skip_freq", "softmax_type", "no_rope_freq", "qk_l2_norm", "moe_latent_size",
                 "heterogeneous_block_specs", "transformer_layer_spec", "hybrid_stack_spec")
"""Fields of a provider that shape its layers, which a model by its name has from its configuration."""
_PROVIDERS: Final = re.compile(
    r"(hf|Hybrid|Mamba|NemotronH|NemotronNano|Nemotron3|GPT|MLA|Mistral|Llama[0-9]|Qwen[0-9]|DeepSeek|Moonlight|Kimi)"
    r"(?!.*(VL|Omni|Audio|ASR|Next|Qwen35)).*")
"""Providers of plain layers, now and in older releases; others have towers, windows or layers of their own."""
_DENSE: Final = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads", "ffn_hidden_size": "intermediate_size"}
_OF_ONE_FAMILY: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "Gemma3ModelProvider": ("gemma-3-1b", _DENSE | {"kv_channels": "head_dim", "window_size": "sliding_window"}),
    "OlMoEModelProvider": ("olmoe-1b-7b", {})}
"""Providers with layers of their own, which recipes build by their sizes: preset, and fields of its configuration."""
_NANO: Final = "nemotron-3-nano-30b-a3b"
_SUPER: Final = "nemotron-3-super-120b-a12b"
"""The preset with experts of a latent width."""


def read_model(reader: Reader, draft: Draft) -> None:
    """Writes the model, or refuses a provider that is not read."""
    target, name = reader.text("model._target_"), reader.text("model.hf_model_id")
    kind = target.value.rpartition(".")[2] if target else ""
    pattern = reader.text("model.hybrid_layer_pattern")
    if target is not None and kind in _OF_ONE_FAMILY:
        draft.use(target, why="the provider; its sizes are the model")
        _read_family(reader, draft, target, *_OF_ONE_FAMILY[kind])
    elif target is not None and not _PROVIDERS.fullmatch(kind):
        draft.refuse(target, f"the provider {kind}", always=True)
        draft.use(name, pattern)
    elif pattern is not None:
        draft.use(target, name, why="names the provider; the pattern of layers and the sizes beside it are the model")
        _read_hybrid(reader, draft, pattern, name)
    elif name is not None:
        draft.use(target, why="the provider of the model by its name")
        _read_named(reader, draft, in_16_bits(name))
    elif reader.has("model.num_layers") and reader.has("model.hidden_size"):
        draft.use(target, why="the provider; its sizes are the model")
        read_provider(reader, draft)
    elif kind == "GPTModelProvider":
        draft.use(target)
        draft.fail(target.where if target else draft.path, "the recipe has no sizes of its own: give "
                   "model.num_layers, model.hidden_size and model.num_attention_heads as overrides (Megatron-LM main "
                   "transformer/transformer_config.py:1456 divides by no heads)")
        draft.use(reader.integer("model.num_attention_heads"), reader.integer("model.hidden_size"))
    else:
        draft.use(target)
        give_up(draft, target.where if target else draft.path, "not yet: the model of this recipe "
                f"({kind or 'no class'}): read are models by their Hugging Face name or by their sizes"
                + ("" if kind else ". A file that only changes a recipe (--config-file) is read as overrides in the "
                   "launch that names the recipe, such as train.global_batch_size=64"))


def _read_named(reader: Reader, draft: Draft, name: Taken[str]) -> None:
    """A model by its name, and modules of multi-token prediction, which recipes choose."""
    further, depth = reader.integer("model.mtp_num_layers"), reader.integer("model.num_layers")
    wide = reader.integer("model.kv_channels")
    if wide is not None and "deepseek" not in name.value.lower():
        draft.refuse(wide, "another width of heads than the model's own")
    else:
        draft.idle(wide, "latent attention has widths of its own")
    positions = reader.text("model.position_embedding_type")
    if positions is not None and positions.value not in ("rope", "yarn"):
        draft.refuse(positions, f"positions {positions.value}")
    else:
        draft.idle(positions, "the family's own; yarn scales frequencies alone")
    _expect_shape(reader, draft, name.value)
    own = 0 if "mtp_num_layers" in reader.document.data.get("model", {}) else _predicted(name.value)
    _write_rotation(reader, draft, name.value)
    changed, heads = _changed(reader, draft, name), write_own_head(draft, name)
    if not (read_vocabulary(reader, draft, name) or heads or own or (further and further.value) or changed or depth):
        draft.put("model", name)
        draft.use(further, reader.text("model.mtp_hybrid_override_pattern"),
                  reader.flag("model.mtp_use_repeated_layer"), why="no modules of multi-token prediction")
        return
    draft.put("model.config", name)
    for field, taken in changed.items():
        draft.put(f"model.overrides.{field}", taken)
    if further is not None and further.value:
        draft.put("model.overrides.mtp_num_layers", further)
    elif own:
        draft.infer("model.overrides.mtp_num_layers", own, "modules of the model's own configuration", name,
                    source="Bridge models/conversion/model_bridge.py:497: num_nextn_predict_layers, "
                    "mtp_num_hidden_layers")
    draft.use(further, why="no modules of multi-token prediction")
    if depth is not None:
        draft.put("model.overrides.num_hidden_layers", depth)
    _read_repeated(reader, draft, name, further)


def _read_repeated(reader: Reader, draft: Draft, name: Taken[str], further: Taken[int] | None) -> None:
    """One layer for all depths of multi-token prediction, which hybrid models are simulated with."""
    pattern, repeats = reader.text("model.mtp_hybrid_override_pattern"), reader.flag("model.mtp_use_repeated_layer")
    if pattern is not None:
        draft.put("model.overrides.mtp_hybrid_override_pattern", pattern)
    is_hybrid = find(name.value) is not None and model_config(name.value, None, "").get("model_type") == "nemotron_h"
    if repeats is not None and repeats.value and is_hybrid:
        draft.put("model.overrides.mtp_use_repeated_layer", repeats)
    elif repeats is not None and repeats.value and further is not None and further.value > 1:
        draft.refuse(repeats, "one layer of multi-token prediction for all depths")
    else:
        draft.use(repeats, why="off, or of one depth, as without it")


def _write_rotation(reader: Reader, draft: Draft, name: str) -> None:
    """Writes the converter's rotary embeddings, where the simulation has one kernel and the recipe says nothing."""
    if name.lower().startswith(TURNED_APART) and not reader.has("model.apply_rope_fusion"):
        draft.default("framework_options.apply_rope_fusion", False, f"Bridge {COMMIT}",  # noqa: FBT003 - a value
                      "Megatron-LM core/transformer/transformer_config.py:513; models/qwen, glm and gemma set none")


def _changed(reader: Reader, draft: Draft, name: Taken[str]) -> dict[str, Taken[Any]]:
    """Sizes that differ from the model's own, by the field of its configuration; those without a field are refused.

    Towers that the recipe does not build are among them.
    """
    config = model_config(name.value, None, "") if find(name.value) is not None else {}
    found: dict[str, Taken[Any]] = {}
    for key, fields in _FIELDS.items():
        one = reader.number(f"model.{key}") if key.endswith("dropout") else reader.integer(f"model.{key}")
        field = next((field for field in fields if field in config), "")
        if one is None or (field and config[field] == one.value) or (key.endswith("dropout") and not one.value):
            draft.idle(one, "the model's own")
        elif field:
            found[field] = one
        else:
            draft.refuse(one, "another one than that of the model by its name")
    share = reader.number("model.rotary_percent")
    if share is not None and share.value != config.get("partial_rotary_factor", 1):
        draft.unmodelled(share, "as much of each head is rotated as the model by its name says")
    else:
        draft.idle(share, "the model's own")
    return found | read_fields(reader, draft, config)


def _expect_shape(reader: Reader, draft: Draft, name: str) -> None:
    """Refuses layers of another shape than those of the model by its name; any, of a model that is not known."""
    own = _shape(name)
    for key in (*_SHAPES, *_SIZES, *(key for key in own if key.startswith("dsa_"))):
        one = reader.take(f"model.{key}")
        if one is not None and (key not in own or own[key] != one.value):
            draft.refuse(one, "another one than that of the model by its name")
        else:
            draft.idle(one, "the model's own")


@lru_cache
def _shape(name: str) -> Mapping[str, Any]:
    """Switches and sizes of a model's layers in the provider's words; none of a model that is not known."""
    if find(name) is None:
        return {}
    architecture = architecture_of(model_config(name, None, ""))
    blocks = [kind.block for _, kind in architecture.parts] + [branch.block for _, kind in architecture.parts
                                                               for branch in kind.branches]
    heads = [one for one in blocks if isinstance(one, Attention)]
    latent = [one for one in blocks if isinstance(one, LatentAttention)]
    experts = [one for one in blocks if isinstance(one, Moe)]
    dense = [one for one in blocks if isinstance(one, Mlp)]
    norms = [one for one in blocks if isinstance(one, FinalNorm)]
    found: dict[str, Any] = {
        "gated_linear_unit": any(one.gated for one in dense) or any(one.gated for one in experts),
        "qk_layernorm": any(one.qk_norm for one in heads) or any(one.inner_norms for one in latent),
        "add_bias_linear": any(one.bias for one in dense), "add_qkv_bias": any(one.bias == "qkv" for one in heads),
        "multi_latent_attention": bool(latent), "moe_shared_expert_gate": any(one.shared_gate for one in experts),
        "normalization": "LayerNorm" if any(one.layer_norm for one in norms) else "RMSNorm",
        "share_embeddings_and_output_weights": architecture.tied}
    if latent:
        found |= {"q_lora_rank": latent[0].q_rank, "kv_lora_rank": latent[0].kv_rank, "qk_head_dim": latent[0].nope,
                  "qk_pos_emb_head_dim": latent[0].rope, "v_head_dim": latent[0].value}
        found |= _choice(latent[0].indexer)
    return found | ({"moe_shared_expert_intermediate_size": experts[0].shared_ffn} if experts else {})


def _choice(index: Indexer | None) -> dict[str, Any]:
    """Sizes of an indexer of keys."""
    if index is None:
        return {}
    return {"dsa_indexer_n_heads": index.num_heads, "dsa_indexer_head_dim": index.head_dim,
            "dsa_indexer_topk": index.top_k}


def _predicted(name: str) -> int:
    """Modules of multi-token prediction that Bridge builds unless a recipe says otherwise; 0 for unknown models."""
    if find(name) is None:
        return 0
    config = model_config(name, None, "")
    config = {**config, **(config.get("text_config") or {})}
    counts = (config.get(field) for field in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    return next((count for count in counts if isinstance(count, int)), 0)


def _read_family(reader: Reader, draft: Draft, target: Taken[str], preset: str, fields: Mapping[str, str]) -> None:
    """A provider of one family: a preset with the sizes that the recipe gives."""
    draft.infer("model.config", preset, "the provider's own sizes", target)
    for key, field in fields.items():
        one = reader.integer(f"model.{key}")
        if one is not None:
            _override(draft, field, one.value, one)
    if not read_vocabulary(reader, draft, None):
        draft.use(reader.integer("model.vocab_size"), why="the provider's own")


def _read_hybrid(reader: Reader, draft: Draft, pattern: Taken[str], name: Taken[str] | None) -> None:
    """HybridModelProvider by its sizes (models/hybrid/hybrid_provider.py): Nemotron-H's layers."""
    main, *further = pattern.value.split("/")
    letters = main.replace("|", "")
    preset = _SUPER if reader.has("model.moe_latent_size") else _NANO
    draft.infer("model.config", preset, "a pattern of layers is a Nemotron-H's", pattern)
    _override(draft, "hybrid_override_pattern", letters, pattern)
    _override(draft, "num_hidden_layers", len(letters), pattern)
    draft.use(reader.integer("model.num_layers"), why="the pattern of layers has as many")
    for key, field in _HYBRID.items():
        one = reader.integer(f"model.{key}")
        if one is not None:
            _override(draft, field, one.value, one)
    read_vocabulary(reader, draft, name)
    _style(reader, draft)
    count, repeats, old = (reader.integer("model.mtp_num_layers"), reader.flag("model.mtp_use_repeated_layer"),
                           reader.text("model.mtp_hybrid_override_pattern"))
    further = further or [old.value] * (count.value if count else 0) if old else further
    draft.use(count, repeats, old, why="no modules of multi-token prediction")
    if further:
        _override(draft, "mtp_num_layers", len(further), *(one for one in (pattern, count) if one))
        _override(draft, "mtp_hybrid_override_pattern", further[0], *(one for one in (pattern, old) if one))
        _override(draft, "mtp_use_repeated_layer", bool(repeats and repeats.value), *([repeats] if repeats else []))


def _style(reader: Reader, draft: Draft) -> None:
    """Activation and positions; other than Nemotron-H's they are written."""
    active = reader.text("model.activation_func")
    draft.use(active, why="a Nemotron-H's")
    if active is not None and active.value != "squared_relu":
        give_up(draft, active.where, f"not yet: {active.value} in a hybrid (served: squared_relu)")
    gated, norm = reader.flag("model.gated_linear_unit"), reader.text("model.normalization")
    draft.use(gated, why="off, a Nemotron-H's")
    if norm is not None:
        draft.put("model.overrides.normalization", norm)
    if gated is not None and gated.value:
        give_up(draft, gated.where, "not yet: model.gated_linear_unit: gated MLPs in a hybrid")
    positions = reader.text("model.position_embedding_type")
    if positions is not None:
        draft.put("model.overrides.position_embedding_type", positions)
    for name in ("hidden_dropout", "attention_dropout"):
        one = reader.number(f"model.{name}")
        if one is not None and one.value:
            draft.put(f"model.overrides.{name}", one)
        else:
            draft.use(one, why="none, as without it")
    tied = reader.flag("model.share_embeddings_and_output_weights")
    if tied is not None:
        draft.put("model.overrides.tie_word_embeddings", tied)


def _override(draft: Draft, field: str, value: Any, *taken: Taken[Any]) -> None:
    draft.infer(f"model.overrides.{field}", value, " and ".join(one.key for one in taken) or "the default", *taken)
