"""MPT: LayerNorm, attention over one product for query, key and value, GELU MLP (transformers `models/mpt`).

llm-foundry 0.3.0 `llmfoundry/models/mpt` has the same words for more: learned positions where ALiBi does not tell them,
biases of linears and norms unless `no_bias`. transformers reads neither word: it builds ALiBi, and no bias.
"""

from __future__ import annotations

from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Mlp
from simcore.models.config import Architecture, Config, ModelFamily

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with an `MptConfig`; InputError for values that are not modelled."""
    inner = Config(_attention_fields(config), config.where)
    _refuse_variants(config, inner)
    hidden, vocab = config.integer("d_model", "hidden_size"), config.integer("vocab_size")
    bias, alibi = not config.boolean("no_bias", default=True), inner.boolean("alibi", default=True)
    learned = config.boolean("learned_pos_emb", default=True) and not alibi
    positions = config.integer("max_seq_len", default=2048) if learned else 0
    layer = _layer(config, inner, hidden, bias=bias, alibi=alibi)
    stem = LayerKind("embedding", "mpt", hidden, block=Embedding(vocab, hidden, positions=positions),
                     dropout=config.fraction("emb_pdrop", 0.0) > 0)
    norm = FinalNorm(hidden, layer_norm=True, norm_bias=bias)
    # llm-foundry's `MPTForCausalLM` refuses untied embeddings.
    tied = config.boolean("tie_word_embeddings", default=True)
    count = config.integer("num_hidden_layers", "n_layers", default=24)
    parts = (
        ("transformer.wte" if not positions else "transformer", stem),
        *((f"transformer.blocks.{i}", layer) for i in range(count)),
        ("transformer.norm_f", LayerKind("final_norm", "mpt", hidden, block=norm)),
        ("lm_head", LayerKind("head", "mpt", hidden, block=Head(vocab, hidden, tied))),
        ("loss", LayerKind("loss", "mpt", hidden, block=Loss(vocab))),
    )
    return Architecture("mpt", parts, vocab, hidden, tied, "D" * count)


def _refuse_variants(config: Config, inner: Config) -> None:
    """InputError for variants that llm-foundry builds in another way and that are not modelled."""
    config.choice("norm_type", ("low_precision_layernorm",))
    if config.fields.get("embedding_fraction", 1) != 1:
        raise config.fail("embedding_fraction", "not modelled yet")
    if config.fields.get("logit_scale") is not None:
        raise config.fail("logit_scale", "not modelled yet")
    inner.choice("attn_type", ("multihead_attention",))
    inner.refuse("prefix_lm", "qk_ln", "attn_uses_sequence_id")
    if inner.fields.get("clip_qkv") is not None:
        raise config.fail("clip_qkv", "not modelled yet")


def _attention_fields(config: Config) -> dict[str, object]:
    fields = config.fields.get("attn_config")
    if fields is not None and not isinstance(fields, dict):
        raise config.fail("attn_config", f"expected a block of words, got {fields!r}")
    return fields or {}


def _layer(config: Config, inner: Config, hidden: int, *, bias: bool, alibi: bool) -> LayerKind:
    heads = config.integer("n_heads", "num_attention_heads", default=16)
    if hidden % heads:
        raise config.fail("n_heads", f"expected a divisor of {hidden}, got {heads}")
    attention = Attention(hidden, heads, heads, hidden // heads, bias="all" if bias else "", alibi=alibi,
                          dropout=inner.fraction("attn_pdrop", 0.0) > 0)
    mlp = Mlp(hidden, config.integer("expansion_ratio", default=4) * hidden, gated=False, gelu=True, bias=bias)
    branches = tuple(Branch(norm, name, block, layer_norm=True, norm_bias=bias)
                     for norm, name, block in (("norm_1", "attn", attention), ("norm_2", "ffn", mlp)))
    return LayerKind("decoder", "mpt", hidden, branches,
                     dropout=config.fraction("resid_pdrop", 0.0) > 0)


FAMILY = ModelFamily(architecture, further_fields=(
    "expansion_ratio", "learned_pos_emb", "no_bias", "attn_config", "emb_pdrop", "resid_pdrop"))
