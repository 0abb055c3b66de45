"""GLM-4 (dense), 4.5 to 4.7, 5 and 5.1: grouped-query attention, or latent attention (4.7-Flash, 5), before experts.

GLM-4 9B and 32B (transformers 5.23 `models/glm`, `models/glm4`): gate and up are one matrix, half of a head is rotated,
by neighbours, and the second has norms behind attention and MLP too. The others have experts chosen by sigmoid.

As transformers 5.23 `models/glm4_moe` and `models/glm4_moe_lite`. The first layers are dense: `first_k_dense_replace`
of them, or what `mlp_layer_types` says (in the lite model one). In the first model query, key and value may have
biases, heads of query and key a norm, and half of a head is rotated. The module of multi-token prediction that
configurations name (`num_nextn_predict_layers`) is not built for training (`num_mtp_layers`: for generation alone);
Megatron's option `mtp_num_layers` adds it.

GLM-5 (`models/glm_moe_dsa`) has the indexer of DeepSeek-V3.2. GLM-5.2's layers that reuse the keys which an earlier one
chose (`indexer_types`) are not modelled.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, Branch, LatentAttention, LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims
from simcore.models.families.deepseek import indexer, latent_attention, sigmoid_experts

__all__ = ["FAMILY"]

_WORDS = ("dense", "sparse")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GlmConfig`, `Glm4Config`, or one of those with experts.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    if family in ("glm", "glm4"):
        return _dense(config, family)
    mixer, rotated = _grouped(config) if family == "glm4_moe" else _latent(config, family)
    dense = decoder_layer(family, mixer, mlp(config))
    sparse = decoder_layer(family, mixer, sigmoid_experts(config))
    layers = [dense if kind == "dense" else sparse for kind in _kinds(config, family)]
    further = config.integer("mtp_num_layers", default=0, least=0) if family == "glm4_moe" else 0
    return chain(config, family, layers, rotated, further)


def _dense(config: Config, family: str) -> Architecture:
    mixer = attention(config, bias="qkv" if config.boolean("attention_bias", default=True) else "", head_dim=128)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim,
                           config.fraction("partial_rotary_factor", 0.5))
    first, second = ("post_self_attn_layernorm", "post_mlp_layernorm") if family == "glm4" else ("", "")
    layer = LayerKind("decoder", family, mixer.hidden, (
        Branch("input_layernorm", "self_attn", replace(mixer, rotated=rotated), behind=first),
        Branch("post_attention_layernorm", "mlp", mlp(config), behind=second)))
    return chain(config, family, [layer] * config.integer("num_hidden_layers"), rotated)


def _latent(config: Config, family: str) -> tuple[LatentAttention, int]:
    config.refuse("attention_bias")
    mixer = latent_attention(config)
    if family == "glm_moe_dsa":
        count = config.integer("num_hidden_layers")
        if "shared" in config.names("indexer_types", ("full",) * count, ("full", "shared")):
            raise config.fail("indexer_types", "layers that reuse keys which an earlier one chose are not modelled yet")
        mixer = replace(mixer, indexer=indexer(config, heads=32))
    return mixer, mixer.rope


def _grouped(config: Config) -> tuple[Attention, int]:
    mixer = attention(config, bias="qkv" if config.boolean("attention_bias", default=False) else "",
                      qk_norm=config.boolean("use_qk_norm", default=False))
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim,
                           config.fraction("partial_rotary_factor", 0.5))
    return replace(mixer, rotated=rotated), rotated


def _kinds(config: Config, family: str) -> tuple[str, ...]:
    """"dense" or "sparse" of each layer; of both, the first is dense by default."""
    count = config.integer("num_hidden_layers")
    usual = 3 if family == "glm_moe_dsa" else 1
    first = min(count, config.integer("first_k_dense_replace", default=usual, least=0))
    kinds = ("dense",) * first + ("sparse",) * (count - first)
    return kinds if family == "glm4_moe" else config.names("mlp_layer_types", kinds, _WORDS)


FAMILY = ModelFamily(architecture, further_fields=(
    "use_qk_norm", "partial_rotary_factor", "mlp_layer_types", "indexer_types"), untied={
    "megatron": "Bridge main 2026-08-22 models/glm/glm45_bridge.py:68: share_embeddings_and_output_weights = False"})
