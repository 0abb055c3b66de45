"""Granite 4: Mamba-2 or attention, then experts with a shared MLP, as transformers 5.23 `models/granitemoehybrid`.

Without experts (`num_local_experts: 0`) the shared MLP is the layer's own. Attention knows positions only
with `position_embedding_type: rope`. Embedding, residual branches and logits are multiplied by numbers; a one is a
product too.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Branch, LayerKind, Mixer, Mlp, Moe
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.bamba import mamba
from simcore.models.families.decoder import attention, chain, top_k

__all__ = ["FAMILY"]


_MAMBA, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GraniteMoeHybridConfig`.

    InputError for values that are not modelled.
    """
    config.refuse("attention_bias")
    config.choice("hidden_act", ("silu",))
    count, rotary = config.integer("num_hidden_layers"), config.fields.get("position_embedding_type") == "rope"
    types = config.names("layer_types", (_MAMBA[1],) * count, (*_MAMBA, *_ATTENTION))
    mixer = replace(attention(config), rotary=rotary)
    tables = mixer.head_dim if rotary else 0
    kinds = {True: replace(_layer(config, "mamba", "mamba", mamba(config)), tables=tables),
             False: _layer(config, "attention", "self_attn", mixer)}
    return chain(config, "granitemoehybrid", [kinds[name in _MAMBA] for name in types], tables, scaled=True)


def _layer(config: Config, name: str, module: str, mixer: Mixer) -> LayerKind:
    """Experts, or the MLP that would stand beside them."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size", default=1024)
    experts = config.integer("num_local_experts", default=8, least=0)
    feed_forward = Branch("post_attention_layernorm", "shared_mlp", Mlp(hidden, shared))
    if experts:
        moe = Moe(hidden, experts, top_k(config, experts), config.integer("intermediate_size"), shared, gated=True,
                  router="topk_softmax")
        feed_forward = Branch("post_attention_layernorm", "block_sparse_moe", moe)
    return LayerKind(name, "granitemoehybrid", hidden, (Branch("input_layernorm", module, mixer), feed_forward),
                     scaled=True)


FAMILY = ModelFamily(architecture, further_fields=("position_embedding_type",))
