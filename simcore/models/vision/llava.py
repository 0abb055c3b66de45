"""LLaVA, as transformers 5.23 `LlavaForConditionalGeneration`: a tower and two linears before a decoder.

LLaVA 1.5 has CLIP's tower before Llama: an image of one size, each patch of which becomes a token, out of what goes
into the tower's last layer (`models/llava`, `models/clip`). Pixtral 12B is of this class: Pixtral's tower before
Mistral, an image of any size in multiples of a patch (`models/pixtral`). The decoder is one module deeper
(`model.language_model`).
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import LayerKind
from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import llama, mistral
from simcore.models.vision.around import decoder_of, part_of, with_layers, with_tower
from simcore.models.vision.mistral3 import pixtral_buffers, pixtral_parts, pixtral_patches
from simcore.models.vision_blocks import RowProjector

__all__ = ["FAMILY"]

_TOWER = "model.vision_tower"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `LlavaConfig`; InputError for values that are not modelled."""
    vision = part_of(config, "vision_config", "clip_vision_model", "pixtral")
    return _with_clip(config, vision) if vision.fields["model_type"] != "pixtral" else _with_pixtral(config, vision)


def _text(config: Config, family: str) -> Config:
    text = part_of(config, "text_config", family)
    return with_layers(config, text, tied=False, forwards=True)


def _with_clip(config: Config, vision: Config) -> Architecture:
    made = llama.architecture(_text(config, "llama"))
    _check(config, layer=-2, strategy="default")
    vision.choice("hidden_act", ("quick_gelu",))
    if vision.fraction("attention_dropout", 0):
        raise vision.fail("attention_dropout", "not modelled yet")
    image, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=32)
    width, heads = vision.integer("hidden_size", default=768), vision.integer("num_attention_heads", default=12)
    if image % patch or width % heads:
        raise vision.fail("image_size" if image % patch else "num_attention_heads", "expected a multiple of patch_size"
                          if image % patch else f"expected a divisor of hidden_size {width}")
    patches = ClassPatches(image, patch, vision.integer("num_channels", default=3), width)
    layer = ClassLayer(patches.count, width, heads, vision.integer("intermediate_size", default=3072))
    layers = vision.integer("num_hidden_layers", default=12, least=2)
    end = ClassEnd(layer, layers, made.hidden, layers + 1, decoder_of(made),
                   config.boolean("multimodal_projector_bias", default=True))
    kind = LayerKind("vision_layer", "llava", width, block=layer)
    tower = [(_TOWER, LayerKind("vision_patches", "llava", width, block=patches)),
             *((f"{_TOWER}.encoder.layers.{i}", replace(kind, block=replace(layer, first=not i)))
               for i in range(layers - 1)),
             ("model", LayerKind("vision_projector", "llava", made.hidden, block=end))]
    return with_tower(made, "llava", tower, [(f"{_TOWER}.embeddings.position_ids", 8 * patches.count)])


def _with_pixtral(config: Config, vision: Config) -> Architecture:
    made = mistral.architecture(_text(config, "mistral"))
    patches = pixtral_patches(config, vision, 1)
    _check(config, layer=-1, strategy="full")
    layers = vision.integer("num_hidden_layers", default=24)
    end = RowProjector(patches.rows, patches.columns, patches.width, 1, made.hidden, layers, layers + 2,
                       decoder_of(made), patches.rotary_dim, plain=True,
                       bias=config.boolean("multimodal_projector_bias", default=True))
    return with_tower(made, "llava", pixtral_parts("llava", vision, patches, end), pixtral_buffers(patches))


def _check(config: Config, *, layer: int, strategy: str) -> None:
    """Raises InputError unless the projector takes in the outputs of `layer`, those that `strategy` selects."""
    config.choice("projector_hidden_act", ("gelu",))
    if config.fields.get("vision_feature_layer", -2) != layer:
        raise config.fail("vision_feature_layer", f"expected {layer}, counted from the end of the tower: others are "
                          "not modelled yet")
    if config.fields.get("vision_feature_select_strategy", "default") != strategy:
        raise config.fail("vision_feature_select_strategy", f"expected {strategy}: others are not modelled yet")


FAMILY = ModelFamily(architecture)
