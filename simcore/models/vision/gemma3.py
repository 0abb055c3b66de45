"""Gemma 3 with its vision tower, SigLIP, as transformers 5.23 `Gemma3ForConditionalGeneration`.

Every image is 896 pixels wide and high, or what `vision_config` says, and becomes `mm_tokens_per_image` tokens: patches
are averaged in squares (`models/gemma3`, Gemma3MultiModalProjector). `models/siglip` is the tower. The decoder is that
of `gemma3_text`, one module deeper (`model.language_model`).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families.gemma import earlier
from simcore.models.vision.around import decoder_of, part_of, with_layers, with_tower
from simcore.models.vision_blocks import Patches, Projector, TowerLayer, TowerNorm

__all__ = ["FAMILY"]

_TOWER = "model.vision_tower"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Gemma3Config`; InputError for values that are not modelled."""
    text = part_of(config, "text_config", "gemma3_text")
    vision = part_of(config, "vision_config", "siglip_vision_model")
    made = earlier.architecture(with_layers(config, text, tied=True))
    patches = _patches(vision)
    tower = _tower(vision, patches, Projector(
        patches.count, patches.width, _tokens(config, patches), made.hidden, below=0,
        decoder=decoder_of(made)))
    return with_tower(made, "gemma3", tower, [(f"{_TOWER}.embeddings.position_ids", 8 * patches.count)])


def _patches(vision: Config) -> Patches:
    """The published files say `vision_use_head: false`; with a head, attention over all patches would follow."""
    if vision.boolean("vision_use_head", default=True):
        raise vision.fail("vision_use_head", "not modelled yet: a head of the vision tower")
    image, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=16)
    if image % patch:
        raise vision.fail("image_size", f"expected a multiple of patch_size {patch}, got {image}")
    return Patches(image, patch, vision.integer("num_channels", default=3), vision.integer("hidden_size", default=768))


def _tokens(config: Config, patches: Patches) -> int:
    """Tokens of an image: those of a side divide the patches of a side."""
    tokens = config.integer("mm_tokens_per_image", default=256)
    side, given = isqrt(tokens), isqrt(patches.count)
    if side**2 != tokens or given % side:
        raise config.fail("mm_tokens_per_image", f"expected the square of a number that divides {given}, the patches "
                          f"of a side, got {tokens}")
    return tokens


def _tower(vision: Config, patches: Patches, projector: Projector) -> tuple[tuple[str, LayerKind], ...]:
    """The tower's parts and the projector; InputError for another activation, or dropout."""
    vision.choice("hidden_act", ("gelu_pytorch_tanh",))
    heads, count = vision.integer("num_attention_heads", default=12), vision.integer("num_hidden_layers", default=12)
    if patches.width % heads:
        raise vision.fail("num_attention_heads", f"expected a divisor of hidden_size {patches.width}, got {heads}")
    if vision.fraction("attention_dropout", 0):
        raise vision.fail("attention_dropout", "not modelled yet")
    layer = TowerLayer(patches.count, patches.width, heads, vision.integer("intermediate_size", default=3072))
    norm, last = TowerNorm(patches.count, patches.width, count), replace(projector, below=count + 3)
    of_tower = LayerKind("vision_patches", "gemma3", patches.width, block=patches)
    return (
        (f"{_TOWER}.embeddings", of_tower),
        *((f"{_TOWER}.encoder.layers.{i}", replace(of_tower, name="vision_layer", block=replace(layer, first=not i)))
          for i in range(count)),
        (f"{_TOWER}.post_layernorm", replace(of_tower, name="vision_norm", block=norm)),
        ("model.multi_modal_projector", LayerKind("vision_projector", "gemma3", projector.hidden, block=last)),
    )


FAMILY = ModelFamily(architecture)
