"""Arguments of a model: those of its layers, whatever its family's configuration calls them."""

from __future__ import annotations

from math import gcd
from typing import Any, Final, TypeVar

from simcore.models.blocks import Attention, Embedding, LatentAttention, LayerKind, Mamba2, Mlp, Moe, Mtp
from simcore.recipes.megatron.argument_puts import ArgumentPuts

__all__ = ["is_hybrid", "write_model"]

B = TypeVar("B")
_MODEL: Final = "model"
_UNIT: Final = 128
"""Multiple to which Megatron pads a vocabulary, times tp, if nothing says another."""


def is_hybrid(puts: ArgumentPuts) -> bool:
    """True for a model whose layers are one block each, by a pattern."""
    graph = puts.outline.settled.graph
    return any(len(graph.kinds[graph.layers[number].kind].branches) == 1 for number in graph.blocks)


def write_model(puts: ArgumentPuts) -> None:
    """Writes the sizes of a model. What Megatron-LM has no argument for is found when the recipe is read back."""
    graph = puts.outline.settled.graph
    layers = [graph.kinds[graph.layers[number].kind] for number in graph.blocks]
    further = next((kind for kind in graph.kinds if isinstance(kind.block, Mtp)), None)
    if is_hybrid(puts):
        _write_pattern(puts, further)
    else:
        puts.put("num_layers", len(layers), _MODEL)
    puts.put("hidden_size", graph.architecture.hidden, _MODEL)
    _write_attention(puts, layers)
    _write_mlp(puts, layers)
    _write_experts(puts, layers)
    _write_mamba(puts, layers)
    _write_style(puts, layers)
    if further is not None and isinstance(further.block, Mtp):
        puts.put("mtp_num_layers", len(graph.branches) * further.block.depths, _MODEL)
        if puts.is_main:
            puts.put("mtp_use_repeated_layer", further.block.depths > 1, _MODEL)
    _write_vocabulary(puts)


def _blocks(layers: list[LayerKind], kind: type[B]) -> list[B]:
    return [branch.block for layer in layers for branch in layer.branches if isinstance(branch.block, kind)]


def _write_pattern(puts: ArgumentPuts, further: LayerKind | None) -> None:
    fields = puts.outline.settled.fields
    pattern = puts.outline.settled.graph.architecture.pattern
    if further is not None:
        inner = str(fields.get("mtp_hybrid_override_pattern", ""))
        pattern = "/".join([pattern, *[inner] * int(fields.get("mtp_num_layers") or 0)])
    puts.put("hybrid_layer_pattern" if puts.is_main else "hybrid_override_pattern", pattern, _MODEL)
    if not puts.is_main:
        puts.put("is_hybrid_model", True, _MODEL)  # noqa: FBT003
        puts.put("num_layers", len(puts.outline.settled.graph.blocks), _MODEL)
        puts.put("spec", ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"], _MODEL)


def _write_attention(puts: ArgumentPuts, layers: list[LayerKind]) -> None:
    hidden = puts.outline.settled.graph.architecture.hidden
    for latent in _blocks(layers, LatentAttention)[:1]:
        puts.put("num_attention_heads", latent.num_heads, _MODEL)
        puts.put("multi_latent_attention", True, _MODEL)  # noqa: FBT003
        puts.put("q_lora_rank", latent.q_rank or None, _MODEL)
        for field, size in (("kv_lora_rank", latent.kv_rank), ("qk_head_dim", latent.nope),
                            ("qk_pos_emb_head_dim", latent.rope), ("v_head_dim", latent.value)):
            puts.put(field, size, _MODEL)
        puts.put("qk_layernorm", latent.inner_norms, _MODEL)
    for plain in _blocks(layers, Attention)[:1]:
        puts.put("num_attention_heads", plain.num_heads, _MODEL)
        if plain.num_kv_heads != plain.num_heads:
            puts.put("group_query_attention", True, _MODEL)  # noqa: FBT003
            puts.put("num_query_groups", plain.num_kv_heads, _MODEL)
        if plain.head_dim * plain.num_heads != hidden:
            puts.put("kv_channels", plain.head_dim, _MODEL)
        puts.put("qk_layernorm", plain.qk_norm, _MODEL)
        puts.put("add_qkv_bias", plain.bias == "qkv", _MODEL)
        if plain.sinks:
            puts.put("softmax_type", "learnable", _MODEL)
    if not _blocks(layers, Attention) and not _blocks(layers, LatentAttention):  # a hybrid: Megatron asks for heads
        puts.put("num_attention_heads", puts.outline.settled.fields.get("num_attention_heads", 1), _MODEL)
    windows = [block.window for block in _blocks(layers, Attention) if block.window]
    if windows:
        puts.put("window_size", f"{windows[0] - 1},0", _MODEL)
        puts.put("window_attn_skip_freq", 2, _MODEL)


def _write_mlp(puts: ArgumentPuts, layers: list[LayerKind]) -> None:
    """Width and activation; layers with experts alone have the configuration's width, which nothing has."""
    fields, mlps, experts = puts.outline.settled.fields, _blocks(layers, Mlp), _blocks(layers, Moe)
    width = mlps[0].ffn if mlps else fields.get("intermediate_size") or next((one.expert_ffn for one in experts), None)
    puts.put("ffn_hidden_size", width, _MODEL)
    shaped: list[Mlp | Moe] = [*mlps, *experts]
    for one in shaped[:1]:
        puts.put("swiglu", one.gated and not one.gelu, _MODEL)
        puts.put("squared_relu", not one.gated and not one.gelu, _MODEL)
        puts.put("quick_geglu", one.gated and one.gelu, _MODEL)


def _write_experts(puts: ArgumentPuts, layers: list[LayerKind]) -> None:
    for one in _blocks(layers, Moe)[:1]:
        puts.put("num_experts", one.num_experts, _MODEL)
        puts.put("moe_router_topk", one.top_k, _MODEL)
        puts.put("moe_ffn_hidden_size", one.expert_ffn, _MODEL)
        puts.put("moe_shared_expert_intermediate_size", one.shared_ffn or None, _MODEL)
        puts.put("moe_shared_expert_gate", one.shared_gate, _MODEL)
        puts.put("moe_latent_size", one.latent or None, _MODEL)
        puts.put("moe_router_score_function", "sigmoid" if one.router == "sigmoid" else "softmax", _MODEL)
        if layers[0].family == "deepseek_v2":  # Bridge models/deepseek/deepseek_v2_bridge.py
            puts.put("moe_router_pre_softmax", True, _MODEL)  # noqa: FBT003 - a switch
        if one.num_groups > 1:
            puts.put("moe_router_num_groups", one.num_groups, _MODEL)
            puts.put("moe_router_group_topk", one.chosen_groups, _MODEL)
    if _blocks(layers, Moe) and not is_hybrid(puts):
        has = [any(isinstance(branch.block, Moe) for branch in layer.branches) for layer in layers]
        if not all(has):
            puts.put("moe_layer_freq", _frequency(has), _MODEL)


def _frequency(has: list[bool]) -> str:
    """A pattern such as `([0]*3+[1]*58)` of layers with (1) and without (0) experts."""
    runs: list[list[int]] = []
    for one in has:
        if runs and runs[-1][0] == one:
            runs[-1][1] += 1
        else:
            runs.append([int(one), 1])
    return f"({'+'.join(f'[{value}]*{count}' for value, count in runs)})"


def _write_mamba(puts: ArgumentPuts, layers: list[LayerKind]) -> None:
    for one in _blocks(layers, Mamba2)[:1]:
        for field, size in (("mamba_num_heads", one.num_heads), ("mamba_head_dim", one.head_dim),
                            ("mamba_num_groups", one.num_groups), ("mamba_state_dim", one.state)):
            puts.put(field, size, _MODEL)


def _write_style(puts: ArgumentPuts, layers: list[LayerKind]) -> None:
    """Norms, biases, positions, dropout."""
    graph, fields = puts.outline.settled.graph, puts.outline.settled.fields
    puts.put("normalization", "LayerNorm" if layers[0].branches[0].layer_norm else "RMSNorm", _MODEL)
    puts.put("untie_embeddings_and_output_weights", not graph.has_tied_head, _MODEL)
    attention = _blocks(layers, Attention)
    biased = any(one.bias == "all" for one in attention) or any(one.bias for one in _blocks(layers, LatentAttention)
                                                                ) or any(one.bias for one in _blocks(layers, Mlp))
    puts.put("add_bias_linear", biased, _MODEL)
    turns = any(one.rotary for one in attention) or bool(_blocks(layers, LatentAttention))
    stem = next(kind.block for kind in graph.kinds if isinstance(kind.block, Embedding))
    puts.put("position_embedding_type", "rope" if turns else "learned_absolute" if stem.positions else "none", _MODEL)
    length = fields.get("max_position_embeddings") or fields.get("n_positions")
    puts.put("max_position_embeddings", max(int(length or 0), puts.outline.value("training.seq_len")), _MODEL)
    drops: tuple[Any, ...] = (*attention, *_blocks(layers, LatentAttention))
    puts.put("attention_dropout", _share(fields, "attn_pdrop", "attention_dropout") if any(
        one.dropout for one in drops) else 0.0, _MODEL)
    puts.put("hidden_dropout", _share(fields, "resid_pdrop", "hidden_dropout") if any(
        layer.dropout for layer in layers) else 0.0, _MODEL)


def _share(fields: Any, *names: str) -> float:
    return next((float(fields[name]) for name in names if fields.get(name)), 0.1)


def _write_vocabulary(puts: ArgumentPuts) -> None:
    """A stand-in for the tokenizer with as many tokens as the model has rows.

    NullTokenizer has one more than --vocab-size in core 0.16.1 (`training/tokenizer/tokenizer.py`), and as many on main
    (`core/tokenizers/text/libraries/null_tokenizer.py`), where padding can be switched off.
    """
    rows, tp = puts.outline.settled.graph.architecture.vocab, puts.outline.value("mesh.tp")
    puts.put("tokenizer_type", "NullTokenizer")
    if puts.is_main:
        puts.put("vocab_size", rows, _MODEL)
        puts.put("pad_vocab_size", False)  # noqa: FBT003
    else:
        puts.put("vocab_size", rows - 1, _MODEL)
        puts.put("make_vocab_size_divisible_by", gcd(rows // tp, _UNIT))
