"""GPT-2 and its like: LayerNorm, attention and GELU MLP with biases, learned positions (transformers `models/gpt2`).

The configuration's own field names, or the usual ones that `GPT2Config.attribute_map` takes for them. Without a word
about it a tenth of the activations is dropped (`attn_pdrop`, `resid_pdrop`, `embd_pdrop`).
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Loss,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import top_k

__all__ = ["FAMILY"]

_LATENT_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_nope_head_dim",
                  "qk_pos_emb_head_dim", "qk_rope_head_dim", "v_head_dim")


_DELTA_FIELDS = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
                 "linear_conv_kernel_dim")
_ACTIVATIONS = ("gelu_new", "gelu", "relu2")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GPT2Config`; InputError for values that are not modelled."""
    config.choice("activation_function", _ACTIVATIONS)
    config.refuse("add_cross_attention")
    hidden, vocab = config.integer("hidden_size", "n_embd"), config.integer("vocab_size")
    positions = 0 if _turns(config) else config.integer("max_position_embeddings", "n_positions")
    layers = _layers(config, hidden)
    tied, mtp = config.boolean("tie_word_embeddings", default=True), _further(config, positions)
    stem = LayerKind("embedding", "gpt2", hidden, block=Embedding(vocab, hidden, positions=positions, shared=mtp > 0),
                     dropout=config.fraction("embd_pdrop", 0.1) > 0)
    further = replace(layers[-1], name="mtp", block=Mtp(hidden, vocab, mtp, tied=tied))
    parts = (
        ("transformer", stem),
        *((f"transformer.h.{i}", layer) for i, layer in enumerate(layers)),
        ("transformer.ln_f", LayerKind("final_norm", "gpt2", hidden, block=FinalNorm(hidden, _has_layer_norm(config)))),
        *((f"mtp.layers.{i}", further) for i in range(mtp)),
        ("lm_head", LayerKind("head", "gpt2", hidden, block=Head(vocab, hidden, tied, shared=mtp > 0))),
        ("loss", LayerKind("loss", "gpt2", hidden, block=Loss(vocab))),
    )
    return Architecture("gpt2", parts, vocab, hidden, tied, "D" * len(layers))


def _further(config: Config, positions: int) -> int:
    """Modules of multi-token prediction, one or none like those of DeepSeek."""
    modules = config.integer("mtp_num_layers", default=0, least=0)
    if modules and positions:
        raise config.fail("mtp_num_layers", "multi-token prediction with learned positions is not modelled yet")
    return modules


def _turns(config: Config) -> bool:
    """Tells whether query and key are rotated by their positions, instead of adding learned position vectors."""
    return config.choice("position_embedding_type", ("learned_absolute", "rope")) == "rope"


def _layers(config: Config, hidden: int) -> list[LayerKind]:
    """`first_k_dense_replace`: so many layers of a model with experts have none (Megatron's moe_layer_freq).

    `linear_attention_freq`: one layer of so many has attention, the others a gated delta net (megatron-core d98e8a64
    `models/gpt/experimental_attention_variant_module_specs.py`, get_linear_attention_pattern).
    """
    count, sparse = config.integer("num_hidden_layers", "n_layer"), "n_routed_experts" in config.fields
    first = min(count, config.integer("first_k_dense_replace", default=0, least=0)) * sparse
    every = config.integer("linear_attention_freq", default=1)
    attention = _attention(config, hidden, bias=config.boolean("add_bias_linear", default=True))
    linear = _delta_net(config, hidden) if every > 1 else attention
    layers = []
    for place in range(count):
        layer = _layer(config, hidden, linear if (place + 1) % every else attention, sparse=sparse and place >= first)
        layers.append(replace(layer, name=f"{'moe_' * (first > 0 and place >= first)}{layer.name}"))
    return layers


def _delta_net(config: Config, hidden: int) -> GatedDeltaNet:
    keys, values, key_dim, value_dim = (config.integer(name) for name in _DELTA_FIELDS[:4])
    if values % keys:
        raise config.fail("linear_num_value_heads", f"expected a multiple of {keys} key heads, got {values}")
    if config.boolean("add_bias_linear", default=True):
        raise config.fail("linear_attention_freq", "a gated delta net beside biases (add_bias_linear) is not modelled "
                                                   "yet")
    if not _turns(config):
        raise config.fail("linear_attention_freq", "a gated delta net with learned positions is not modelled yet")
    return GatedDeltaNet(hidden, keys, values, key_dim, value_dim, config.integer("linear_conv_kernel_dim", default=4))


def _layer(config: Config, hidden: int, mixer: Attention | LatentAttention | GatedDeltaNet, *,
           sparse: bool) -> LayerKind:
    bias, layer_norm = config.boolean("add_bias_linear", default=True), _has_layer_norm(config)
    mlp = _experts(config, hidden, bias=bias) if sparse else _mlp(config, hidden, bias=bias)
    name = "delta_net" if isinstance(mixer, GatedDeltaNet) else "decoder"
    return LayerKind(name, "gpt2", hidden, (Branch("ln_1", "attn", mixer, layer_norm=layer_norm),
                                            Branch("ln_2", "mlp", mlp, layer_norm=layer_norm)),
                     dropout=config.fraction("resid_pdrop", 0.1) > 0)


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
                     qk_norm=config.boolean("qk_layernorm", default=False), dropout=dropout,
                     gated=config.boolean("attention_output_gate", default=False))


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


def _mlp(config: Config, hidden: int, *, bias: bool) -> Mlp:
    """Four times the width where `n_inner` is not given (`GPT2Block`); `swiglu`: SiLU, gated.

    Relu squared stands in no kernel with a bias (Megatron-LM d98e8a64 `core/transformer/mlp.py`).
    """
    gated, squared = config.boolean("swiglu", default=False), config.fields.get("activation_function") == "relu2"
    if squared and (gated or bias):
        raise config.fail("activation_function", "relu2 with a gate or with biases (add_bias_linear) is not modelled "
                                                 "yet")
    width = config.integer("n_inner", default=4 * hidden)
    return Mlp(hidden, width, gated=gated, gelu=not (gated or squared), bias=bias)


def _experts(config: Config, hidden: int, *, bias: bool) -> Moe:
    """Experts are Megatron's: GELU, or gated with `swiglu` (Megatron-LM's `training/arguments.py`), no biases."""
    gated = config.boolean("swiglu", default=False)
    if config.fields.get("activation_function") == "relu2":
        raise config.fail("activation_function", "relu2 in experts of a GPT is not modelled yet")
    if bias:
        raise config.fail("n_routed_experts", "experts with biases (add_bias_linear) are not modelled yet")
    experts = config.integer("n_routed_experts")
    return Moe(hidden, experts, top_k(config, experts), config.integer("moe_intermediate_size"),
               config.integer("moe_shared_expert_intermediate_size", default=0, least=0), gated=gated,
               shared_gate=config.boolean("moe_shared_expert_gate", default=False),
               router=config.choice("moe_router_score_function", ("softmax", "sigmoid")), gelu=not gated)


# Fields in Megatron's words: a case of its own tests is GPT-2 with changes.
FAMILY = ModelFamily(architecture, further_fields=(
    "normalization", "add_bias_linear", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    "moe_shared_expert_intermediate_size", "multi_latent_attention", "swiglu", "position_embedding_type",
    "num_query_groups", "mtp_num_layers", "first_k_dense_replace", "moe_router_score_function", "qk_layernorm",
    "attention_output_gate", "moe_shared_expert_gate", "linear_attention_freq", *_DELTA_FIELDS, *_LATENT_FIELDS))
