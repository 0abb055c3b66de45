"""GPT-2 and its like: LayerNorm, attention and GELU MLP with biases, learned positions (transformers `models/gpt2`).

The configuration's own field names, or the usual ones that `GPT2Config.attribute_map` takes for them. Without a word
about it a tenth of the activations is dropped (`attn_pdrop`, `resid_pdrop`, `embd_pdrop`).
"""

from __future__ import annotations

from simcore.models.architecture import Architecture, Config
from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    Head,
    LatentAttention,
    LayerKind,
    Loss,
    Mlp,
    Moe,
)
from simcore.models.decoder import top_k

__all__ = ["FURTHER_FIELDS", "architecture"]

_LATENT_FIELDS = ("qk_layernorm", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_nope_head_dim",
                  "qk_pos_emb_head_dim", "qk_rope_head_dim", "v_head_dim")
FURTHER_FIELDS = ("normalization", "add_bias_linear", "n_routed_experts", "num_experts_per_tok",
                  "moe_intermediate_size", "moe_shared_expert_intermediate_size", "multi_latent_attention", "swiglu",
                  "position_embedding_type", "num_query_groups", *_LATENT_FIELDS)
"""What a configuration may say in Megatron's words: a case of its own tests is GPT-2 with changes."""


def architecture(config: Config) -> Architecture:
    """Layers of a `GPT2Config`."""
    config.choice("activation_function", ("gelu_new", "gelu"))
    config.refuse("add_cross_attention")
    hidden, vocab = config.integer("hidden_size", "n_embd"), config.integer("vocab_size")
    positions = 0 if _turns(config) else config.integer("max_position_embeddings", "n_positions")
    layer, count = _layer(config, hidden), config.integer("num_hidden_layers", "n_layer")
    tied = config.boolean("tie_word_embeddings", default=True)
    stem = LayerKind("embedding", "gpt2", hidden, block=Embedding(vocab, hidden, positions=positions),
                     dropout=config.fraction("embd_pdrop", 0.1) > 0)
    parts = (
        ("transformer", stem),
        *((f"transformer.h.{i}", layer) for i in range(count)),
        ("transformer.ln_f", LayerKind("final_norm", "gpt2", hidden, block=FinalNorm(hidden, _has_layer_norm(config)))),
        ("lm_head", LayerKind("head", "gpt2", hidden, block=Head(vocab, hidden, tied))),
        ("loss", LayerKind("loss", "gpt2", hidden, block=Loss(vocab))),
    )
    return Architecture("gpt2", parts, vocab, hidden, tied, "D" * count)


def _turns(config: Config) -> bool:
    """Whether positions are told by turning query and key, and not by vectors of their own."""
    return config.choice("position_embedding_type", ("learned_absolute", "rope")) == "rope"


def _layer(config: Config, hidden: int) -> LayerKind:
    bias, layer_norm = config.boolean("add_bias_linear", default=True), _has_layer_norm(config)
    attention = _attention(config, hidden, bias=bias)
    mlp = _feed_forward(config, hidden, bias=bias)
    dropout = config.fraction("resid_pdrop", 0.1) > 0
    return LayerKind("decoder", "gpt2", hidden, (Branch("ln_1", "attn", attention, layer_norm=layer_norm),
                                                 Branch("ln_2", "mlp", mlp, layer_norm=layer_norm)), dropout=dropout)


def _attention(config: Config, hidden: int, *, bias: bool) -> Attention | LatentAttention:
    heads, dropout = config.integer("num_attention_heads", "n_head"), config.fraction("attn_pdrop", 0.1) > 0
    if config.boolean("multi_latent_attention", default=False):
        return _latent(config, hidden, heads, bias=bias, dropout=dropout)
    given = [name for name in _LATENT_FIELDS if config.fields.get(name)]
    if given:
        raise config.fail(given[0], "served with multi_latent_attention alone")
    if hidden % heads:
        raise config.fail("n_head", f"expected a divisor of {hidden}, got {heads}")
    groups = config.integer("num_query_groups", default=heads)
    if heads % groups:
        raise config.fail("num_query_groups", f"expected a divisor of {heads} heads, got {groups}")
    return Attention(hidden, heads, groups, hidden // heads, bias="all" if bias else "", rotary=_turns(config),
                     dropout=dropout)


def _latent(config: Config, hidden: int, heads: int, *, bias: bool, dropout: bool) -> LatentAttention:
    """Sizes by Megatron's names or DeepSeek's; defaults of Megatron-LM's `training/arguments.py`, _add_mla_args.

    Without qk_layernorm nothing is normed between the projections; of biases only that of the output projection is
    left (megatron-core 0.16.1 `models/gpt/gpt_layer_specs.py`, `transformer/multi_latent_attention.py`).
    """
    return LatentAttention(
        hidden, heads, config.integer("q_lora_rank", default=0), config.integer("kv_lora_rank", default=32),
        config.integer("qk_head_dim", "qk_nope_head_dim", default=128),
        config.integer("qk_pos_emb_head_dim", "qk_rope_head_dim", default=64),
        config.integer("v_head_dim", default=128), config.boolean("qk_layernorm", default=False), bias, dropout)


def _has_layer_norm(config: Config) -> bool:
    return config.choice("normalization", ("LayerNorm", "RMSNorm")) == "LayerNorm"


def _feed_forward(config: Config, hidden: int, *, bias: bool) -> Mlp | Moe:
    """Four times the width where `n_inner` is not given (`GPT2Block`); experts are Megatron's: GELU, no biases.

    `swiglu`: SiLU, gated, in both (Megatron-LM's `training/arguments.py`).
    """
    gated = config.boolean("swiglu", default=False)
    if "n_routed_experts" not in config.fields:
        if gated and bias:
            raise config.fail("swiglu", "a gated MLP with biases (add_bias_linear) is not modelled yet")
        return Mlp(hidden, config.integer("n_inner", default=4 * hidden), gated=gated, gelu=not gated, bias=bias)
    if bias:
        raise config.fail("n_routed_experts", "experts with biases (add_bias_linear) are not modelled yet")
    experts = config.integer("n_routed_experts")
    return Moe(hidden, experts, top_k(config, experts), config.integer("moe_intermediate_size"),
               config.integer("moe_shared_expert_intermediate_size", default=0, least=0), gated=gated,
               router="softmax", gelu=not gated)
