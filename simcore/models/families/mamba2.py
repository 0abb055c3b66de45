"""Mamba-2 without attention, as transformers 5.23 `models/mamba2`: one mixer a layer, its norm before it.

The residual stream is fp32 unless `residual_in_fp32` says otherwise; the logits are cast to fp32 (`Mamba2ForCausalLM`).
"""

from __future__ import annotations

from simcore.models.blocks import Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Mamba2
from simcore.models.config import Architecture, Config, ModelFamily

__all__ = ["FAMILY"]

_FAMILY = "mamba2"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Mamba2Config`; InputError for values that are not modelled."""
    config.choice("hidden_act", ("silu",))
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    tied, count = config.boolean("tie_word_embeddings", default=False), config.integer("num_hidden_layers")
    wide = config.boolean("residual_in_fp32", default=True)
    layer = LayerKind("mamba", _FAMILY, hidden, (Branch("norm", "mixer", _mixer(config, hidden)),), wide=wide)
    parts = (
        ("backbone.embeddings", LayerKind("embedding", _FAMILY, hidden, block=Embedding(vocab, hidden))),
        *((f"backbone.layers.{i}", layer) for i in range(count)),
        ("backbone.norm_f", LayerKind("final_norm", _FAMILY, hidden, block=FinalNorm(hidden), wide=wide)),
        ("lm_head", LayerKind("head", _FAMILY, hidden, block=Head(vocab, hidden, tied), wide=wide)),
        ("loss", LayerKind("loss", _FAMILY, hidden, block=Loss(vocab, upcast=True))),
    )
    return Architecture(_FAMILY, parts, vocab, hidden, tied, "M" * count)


def _mixer(config: Config, hidden: int) -> Mamba2:
    """Heads must cover the inner width (`Mamba2Config.validate_architecture`)."""
    heads, head_dim = config.integer("num_heads", default=128), config.integer("head_dim", default=64)
    inner, groups = hidden * config.integer("expand", default=2), config.integer("n_groups", default=8)
    if heads * head_dim != inner:
        raise config.fail("num_heads", f"expected num_heads x head_dim = expand x hidden_size = {inner}, got "
                          f"{heads * head_dim}")
    if heads % groups:
        raise config.fail("n_groups", f"expected a divisor of {heads} heads, got {groups}")
    return Mamba2(hidden, heads, head_dim, groups, config.integer("state_size", default=128),
                  config.integer("conv_kernel", default=4), config.integer("chunk_size", default=256),
                  config.boolean("use_bias", default=False), config.boolean("use_conv_bias", default=True))


FAMILY = ModelFamily(architecture)
