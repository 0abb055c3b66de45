"""GLM-4 (dense), 4.5 to 4.7, 5 and 5.1: grouped-query attention, or latent attention (4.7-Flash, 5), before experts.

GLM-4 9B and 32B (transformers 5.23 `models/glm`, `models/glm4`): gate and up are one matrix, half of a head is rotated,
by neighbours, and the second has norms behind attention and MLP too. The others have experts chosen by sigmoid.

As transformers 5.23 `models/glm4_moe` and `models/glm4_moe_lite`. The first layers are dense: `first_k_dense_replace`
of them, or what `mlp_layer_types` says (in the lite model one). In the first model query, key and value may have
biases, heads of query and key a norm, and half of a head is rotated. The module of multi-token prediction that
configurations name (`num_nextn_predict_layers`) is not built for training (`num_mtp_layers`: for generation alone);
Megatron's option `mtp_num_layers` adds it.

GLM-5 (`models/glm_moe_dsa`) has the indexer of DeepSeek-V3.2. Some layers of GLM-5.2 have none and take keys that an
earlier one chose: `indexer_types`, or what transformers 5.23 `configuration_glm_moe_dsa.py` makes of `index_topk_freq`
and `index_skip_topk_offset`, or of `index_topk_pattern`.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, Branch, LatentAttention, LayerKind, Mlp, Moe, Mtp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.decoder import attention, chain, decoder_layer, mlp, rotated_dims
from simcore.models.families.deepseek import indexer, latent_attention, sigmoid_experts

__all__ = ["FAMILY"]

_WORDS = ("dense", "sparse")
_INDEXERS = ("full", "shared")


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `GlmConfig`, `Glm4Config`, or one of those with experts.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    if family in ("glm", "glm4"):
        return _dense(config, family)
    mixer, rotated = _grouped(config) if family == "glm4_moe" else _latent(config)
    blocks: dict[str, Mlp | Moe] = {"dense": mlp(config), "sparse": sigmoid_experts(config)}
    mixers = _choosing(config, mixer) if family == "glm_moe_dsa" else [mixer] * config.integer("num_hidden_layers")
    layers = [decoder_layer(family, own, blocks[kind]) for own, kind in zip(
        mixers, _kinds(config, family), strict=True)]
    further = config.integer("mtp_num_layers", default=0, least=0)
    made = chain(config, family, layers, rotated, further)
    return made if family == "glm4_moe" or not further else _predicting(config, made, further)


def _predicting(config: Config, made: Architecture, further: int) -> Architecture:
    """Modules of multi-token prediction with the last layer's blocks, and an indexer of their own.

    Megatron-LM d98e8a64 transformer/multi_token_prediction.py counts them from 1, as layers, and so asks dsa.py
    whether one chooses keys. NotYet for modules of which some do and some do not.
    """
    every, behind = _distances(config)
    if any(max(module - behind, 0) % every for module in range(1, further + 1)):
        raise NotYet(Problem(config.where, "not yet: modules of multi-token prediction that take keys of a layer"))
    parts = tuple((path, _choosing_itself(kind) if isinstance(kind.block, Mtp) else kind) for path, kind in made.parts)
    return replace(made, parts=parts)


def _choosing_itself(kind: LayerKind) -> LayerKind:
    mixer, *rest = kind.branches
    block = mixer.block
    assert isinstance(block, LatentAttention)
    assert block.indexer is not None
    own = replace(mixer, block=replace(block, indexer=replace(block.indexer, borrows=False)))
    return replace(kind, branches=(own, *rest))


def _dense(config: Config, family: str) -> Architecture:
    mixer = attention(config, bias="qkv" if config.boolean("attention_bias", default=True) else "", head_dim=128)
    rotated = rotated_dims(config, "partial_rotary_factor", mixer.head_dim,
                           config.fraction("partial_rotary_factor", 0.5))
    first, second = ("post_self_attn_layernorm", "post_mlp_layernorm") if family == "glm4" else ("", "")
    layer = LayerKind("decoder", family, mixer.hidden, (
        Branch("input_layernorm", "self_attn", replace(mixer, rotated=rotated), behind=first),
        Branch("post_attention_layernorm", "mlp", mlp(config), behind=second)))
    return chain(config, family, [layer] * config.integer("num_hidden_layers"), rotated)


def _latent(config: Config) -> tuple[LatentAttention, int]:
    config.refuse("attention_bias")
    mixer = latent_attention(config)
    return mixer, mixer.rope


def _choosing(config: Config, mixer: Attention | LatentAttention) -> list[LatentAttention]:
    """Attention of each layer, which sees chosen keys; InputError if no layer below has chosen any."""
    assert isinstance(mixer, LatentAttention)
    kinds = _indexers(config)
    if kinds[0] == "shared":
        raise config.fail("indexer_types", "the first layer takes keys of an earlier one, and there is none")
    own = replace(indexer(config, heads=32), shared="shared" in kinds, listed=kinds != _counted(config),
                  interleaves=config.boolean("indexer_rope_interleave", default=False))
    return [replace(mixer, indexer=replace(own, borrows=kind == "shared")) for kind in kinds]


def _indexers(config: Config) -> tuple[str, ...]:
    """"full" or "shared" of each layer."""
    count, usual = config.integer("num_hidden_layers"), _counted(config)
    pattern = config.fields.get("index_topk_pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise config.fail("index_topk_pattern", "expected letters F and S; a list is that of indexer_types")
    if pattern and (len(pattern) < count or not set(pattern) <= set("FS")):
        raise config.fail("index_topk_pattern", f"expected a letter, F or S, for each of {count} layers, got {pattern}")
    usual = tuple("shared" if letter == "S" else "full" for letter in pattern[:count]) if pattern else usual
    return config.names("indexer_types", usual, _INDEXERS)


def _distances(config: Config) -> tuple[int, int]:
    """Layers from one that chooses to the next, and those before they are counted."""
    return (config.integer("index_topk_freq", default=1),
            config.integer("index_skip_topk_offset", default=2, least=0))


def _counted(config: Config) -> tuple[str, ...]:
    """The same by the number of layers of which one chooses."""
    every, behind = _distances(config)
    return tuple(_INDEXERS[max(layer - behind + 1, 0) % every > 0] for layer in range(config.integer(
        "num_hidden_layers")))


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
    "use_qk_norm", "partial_rotary_factor", "mlp_layer_types", "indexer_types", "index_topk_freq",
    "index_skip_topk_offset", "index_topk_pattern", "indexer_rope_interleave"), untied={
    "megatron": "Bridge main 2026-08-22 models/glm/glm45_bridge.py:68: share_embeddings_and_output_weights = False"})
