"""Shared parts of decoders with rotary positions: attention and SwiGLU behind RMSNorms, and what is around the layers.

Names of modules are those of transformers 5.23 (`models/llama`, `models/qwen2`, `models/qwen3_moe`, `models/mixtral`,
`models/mistral`, `models/deepseek_v3`, `models/gpt_oss`).
"""

from __future__ import annotations

from collections.abc import Sequence

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
    Mtp,
)
from simcore.models.config import Architecture, Config

__all__ = ["attention", "chain", "check_fair_heads", "decoder_layer", "mlp", "rotated_dims",
           "top_k"]


_LETTERS = {"moe_decoder": "E", "mamba": "M", "attention": "*", "hybrid": "H"}


def check_fair_heads(config: Config) -> None:
    """Raises InputError if attention heads do not divide the hidden size, whatever `head_dim` says.

    Rule of transformers 5.23 `LlamaConfig`, `Gemma2Config`, `Gemma3TextConfig`, `DeepseekV2Config`.
    """
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % heads:
        raise config.fail("num_attention_heads", f"expected a divisor of hidden_size {hidden}, got {heads}: the hidden "
                          f"size ({hidden}) is not a multiple of the number of attention heads ({heads}), says "
                          "validate_architecture of the family's configuration in transformers 5.23, whatever head_dim "
                          "is")


def rotated_dims(config: Config, key: str, head_dim: int, share: float) -> int:
    """Dimensions of a head of `head_dim` that are rotated, at a `share` in (0, 1] of them, rounded down.

    InputError at `key` unless they are pairs: cos and sin come in two halves (transformers 5.23 `rotate_half`).
    """
    rotated = int(head_dim * share)
    if rotated < 2 or rotated % 2:
        raise config.fail(key, f"expected pairs of rotated dimensions, got {rotated} of a head's {head_dim}")
    return rotated


def attention(config: Config, *, bias: str = "", qk_norm: bool = False, sinks: bool = False, window: int = 0,
              head_dim: int = 0) -> Attention:
    """Rotary grouped-query attention by the usual field names (`num_attention_heads`, ...).

    The size of a head is the field `head_dim`, else the argument `head_dim` if it is not 0, else hidden size / heads.
    Other arguments are those of `Attention`; `attention_dropout` above 0 drops some of the softmax. InputError if
    key-value heads do not divide heads.
    """
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", default=head_dim or max(1, hidden // heads))
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"expected a divisor of {heads} heads, got {kv_heads}")
    return Attention(hidden, heads, kv_heads, head_dim, rotary=True, bias=bias, qk_norm=qk_norm, sinks=sinks,
                     window=window, dropout=config.fraction("attention_dropout", 0) > 0)


def mlp(config: Config) -> Mlp:
    """SwiGLU MLP of width `intermediate_size`; InputError for another activation than SiLU."""
    config.choice("hidden_act", ("silu",))
    return Mlp(config.integer("hidden_size"), config.integer("intermediate_size"))


def top_k(config: Config, experts: int) -> int:
    """Number of experts that a token goes to (`num_experts_per_tok`); InputError if it exceeds `experts`."""
    chosen = config.integer("num_experts_per_tok")
    if chosen > experts:
        raise config.fail("num_experts_per_tok", f"expected at most {experts} experts, got {chosen}")
    return chosen


def decoder_layer(family: str, mixer: Attention | LatentAttention, feed_forward: Mlp | Moe) -> LayerKind:
    """Kind of layer with attention, then an MLP or experts, each behind its RMSNorm."""
    name = "moe_decoder" if isinstance(feed_forward, Moe) else "decoder"
    return LayerKind(name, family, mixer.hidden, (
        Branch("input_layernorm", "self_attn", mixer), Branch("post_attention_layernorm", "mlp", feed_forward)))


def chain(config: Config, family: str, layers: Sequence[LayerKind], rotary_dim: int, mtp: int = 0, *,
          window: int = 0, norm: str = "model.norm", scaled: bool = False, tied: bool = False,
          last: FinalNorm | None = None) -> Architecture:
    """Architecture with an embedding, the given `layers` (one kind for each), a final norm, the head and the loss.

    `family`: its `model_type`. `rotary_dim`: dimensions of a head that are rotated, 0 none. `mtp`: number of modules,
    like the last layer, that predict further tokens. `window`: tokens that layers with a sliding window see. `norm`:
    module path of the final norm. `scaled`: the embedding's output and the logits are multiplied by a number. `tied`:
    head and embedding share a weight, unless the configuration says otherwise. `last`: the final norm (RMSNorm).
    """
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    tied = config.boolean("tie_word_embeddings", default=tied)
    stem = Embedding(vocab, hidden, rotary_dim, shared=mtp > 0, window=window, streams=last.streams if last else 0)
    further = LayerKind("mtp", family, hidden, layers[-1].branches, Mtp(hidden, vocab, mtp, tied=tied))
    parts = (
        ("model.embed_tokens", LayerKind("embedding", family, hidden, block=stem, scaled=scaled)),
        *((f"model.layers.{i}", layer) for i, layer in enumerate(layers)),
        (norm, LayerKind("final_norm", family, hidden, block=last or FinalNorm(hidden))),
        *((f"mtp.layers.{i}", further) for i in range(mtp)),
        ("lm_head", LayerKind("head", family, hidden, block=Head(vocab, hidden, tied, shared=mtp > 0), scaled=scaled)),
        ("loss", LayerKind("loss", family, hidden, block=Loss(vocab, further=mtp > 0))),
    )
    # inv_freq and original_inv_freq, fp32, one value per pair of rotated dimensions
    buffers = (("model.rotary_emb.inv_freq", 2 * 4 * (rotary_dim // 2)),)
    pattern = "".join(_LETTERS.get(layer.name, "D") for layer in layers)
    return Architecture(family, parts, vocab, hidden, tied, pattern, buffers)
