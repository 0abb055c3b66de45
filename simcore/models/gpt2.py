"""GPT-2 and its like: LayerNorm, attention and GELU MLP with biases, learned positions (transformers `models/gpt2`).

The configuration's own field names, or the usual ones that `GPT2Config.attribute_map` takes for them. Without a word
about it a tenth of the activations is dropped (`attn_pdrop`, `resid_pdrop`, `embd_pdrop`).
"""

from __future__ import annotations

from simcore.models.architecture import Architecture, Config
from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Mlp

__all__ = ["architecture"]


def architecture(config: Config) -> Architecture:
    """Layers of a `GPT2Config`."""
    config.choice("activation_function", ("gelu_new", "gelu"))
    config.refuse("add_cross_attention")
    hidden, vocab = config.integer("hidden_size", "n_embd"), config.integer("vocab_size")
    positions = config.integer("max_position_embeddings", "n_positions")
    layer, count = _layer(config, hidden), config.integer("num_hidden_layers", "n_layer")
    tied = config.boolean("tie_word_embeddings", default=True)
    stem = LayerKind("embedding", "gpt2", hidden, block=Embedding(vocab, hidden, positions=positions),
                     dropout=config.fraction("embd_pdrop", 0.1) > 0)
    parts = (
        ("transformer", stem),
        *((f"transformer.h.{i}", layer) for i in range(count)),
        ("transformer.ln_f", LayerKind("final_norm", "gpt2", hidden, block=FinalNorm(hidden, layer_norm=True))),
        ("lm_head", LayerKind("head", "gpt2", hidden, block=Head(vocab, hidden, tied))),
        ("loss", LayerKind("loss", "gpt2", hidden, block=Loss(vocab))),
    )
    return Architecture("gpt2", parts, vocab, hidden, tied, "D" * count)


def _layer(config: Config, hidden: int) -> LayerKind:
    heads = config.integer("num_attention_heads", "n_head")
    if hidden % heads:
        raise config.fail("n_head", f"expected a divisor of {hidden}, got {heads}")
    attention = Attention(hidden, heads, heads, hidden // heads, bias="all",
                          dropout=config.fraction("attn_pdrop", 0.1) > 0)
    # `GPT2Block`: four times the width where n_inner is not given
    mlp = Mlp(hidden, config.integer("n_inner", default=4 * hidden), gated=False, gelu=True, bias=True)
    dropout = config.fraction("resid_pdrop", 0.1) > 0
    return LayerKind("decoder", "gpt2", hidden, (Branch("ln_1", "attn", attention, layer_norm=True),
                                                 Branch("ln_2", "mlp", mlp, layer_norm=True)), dropout=dropout)
