"""GPT-NeoX: Pythia, RedPajama (`models/gpt_neox` of transformers 5.23).

Attention over one product for query, key and value, cut by heads, of which a quarter is rotated; a GELU MLP beside it,
or behind it without `use_parallel_residual`; a LayerNorm before each; biases of linears, which `attention_bias: false`
takes from attention.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Branch, Embedding, FinalNorm, LayerKind, Mlp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, check_fair_heads, rotated_dims

__all__ = ["FAMILY"]

_STEM = {"model.embed_tokens": "gpt_neox.embed_in", "model.norm": "gpt_neox.final_layer_norm"}


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GPTNeoXConfig`; InputError for values that are not modelled."""
    config.choice("hidden_act", ("gelu",))
    check_fair_heads(config)
    mixer = attention(config, bias="all" if config.boolean("attention_bias", default=True) else "")
    rotated = rotated_dims(config, "rotary_pct", mixer.head_dim, config.fraction("rotary_pct", 0.25))
    mixer, drops = replace(mixer, rotated=rotated), config.fraction("hidden_dropout", 0) > 0
    dense = Mlp(mixer.hidden, config.integer("intermediate_size"), gated=False, gelu=True, bias=True)
    layer = LayerKind("decoder", "gpt_neox", mixer.hidden, (
        Branch("input_layernorm", "attention", mixer, layer_norm=True),
        Branch("post_attention_layernorm", "mlp", dense, layer_norm=True)),
        dropout=drops, beside=config.boolean("use_parallel_residual", default=True))
    made = chain(config, "gpt_neox", [layer] * config.integer("num_hidden_layers"), rotated,
                 last=FinalNorm(mixer.hidden, layer_norm=True))
    parts = ((_named(path), replace(kind, dropout=drops) if isinstance(kind.block, Embedding) else kind)
             for path, kind in made.parts)
    buffers = ((name.replace("model.", "gpt_neox."), size) for name, size in made.buffers)
    return replace(made, parts=tuple(parts), buffers=tuple(buffers))


def _named(path: str) -> str:
    """The module's path in `GPTNeoXForCausalLM`."""
    return _STEM.get(path, path.replace("model.layers", "gpt_neox.layers"))


FAMILY = ModelFamily(architecture, further_fields=("rotary_pct", "use_parallel_residual", "hidden_dropout",
                                                   "attention_bias"))
