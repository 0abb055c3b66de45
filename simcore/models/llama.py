"""The dense Llama family (RMSNorm, rotary grouped-query attention, SwiGLU), as transformers 5.23 `models/llama`."""

from __future__ import annotations

from simcore.models.architecture import Architecture, Config
from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Mlp

__all__ = ["architecture"]


def architecture(config: Config) -> Architecture:
    """Layers of a `LlamaConfig`."""
    hidden = config.integer("hidden_size")
    vocab = config.integer("vocab_size")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", default=max(1, hidden // heads))
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"expected a divisor of {heads} heads, got {kv_heads}")
    for field in ("attention_bias", "mlp_bias"):
        if config.boolean(field, default=False):
            raise config.fail(field, "biases are not modelled yet")
    attention = Attention(hidden, heads, kv_heads, head_dim, rotary=True)
    mlp = Mlp(hidden, config.integer("intermediate_size"))
    branches = (Branch("input_layernorm", "self_attn", attention), Branch("post_attention_layernorm", "mlp", mlp))
    layer = LayerKind("decoder", "llama", hidden, branches)
    num_layers = config.integer("num_hidden_layers")
    tied = config.boolean("tie_word_embeddings", default=False)
    parts = (
        ("model.embed_tokens", LayerKind("embedding", "llama", hidden, block=Embedding(vocab, hidden, head_dim))),
        *((f"model.layers.{i}", layer) for i in range(num_layers)),
        ("model.norm", LayerKind("final_norm", "llama", hidden, block=FinalNorm(hidden))),
        ("lm_head", LayerKind("head", "llama", hidden, block=Head(vocab, hidden, tied))),
        ("loss", LayerKind("loss", "llama", hidden, block=Loss(vocab))),
    )
    # inv_freq and original_inv_freq, fp32, one value per pair of rotated dimensions
    buffers = (("model.rotary_emb.inv_freq", 2 * 4 * (head_dim // 2)),)
    return Architecture("llama", parts, vocab, hidden, tied, "D" * num_layers, buffers)
