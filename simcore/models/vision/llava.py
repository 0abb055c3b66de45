"""LLaVA, as transformers 5.23 `LlavaForConditionalGeneration`: a tower and two linears before a decoder.

Pixtral 12B is of this class: Pixtral's tower before Mistral, an image of any size in multiples of a patch, each of
which becomes a token (`models/llava`, `models/pixtral`). The decoder is one module deeper (`model.language_model`).
"""

from __future__ import annotations

from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import mistral
from simcore.models.vision.around import part_of, stem_of, with_layers, with_tower
from simcore.models.vision.mistral3 import pixtral_buffers, pixtral_parts, pixtral_patches
from simcore.models.vision_blocks import RowProjector

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `LlavaConfig`; InputError for values that are not modelled."""
    text = part_of(config, "text_config", "mistral")
    vision = part_of(config, "vision_config", "pixtral")
    tied = text.boolean("tie_word_embeddings", default=False)
    made = mistral.architecture(with_layers(config, text, tied=tied))
    patches = pixtral_patches(config, vision, 1)
    _check(config, layer=-1, strategy="full")
    layers, stem = vision.integer("num_hidden_layers", default=24), stem_of(made)
    end = RowProjector(patches.rows, patches.columns, patches.width, 1, made.hidden, layers, layers + 2, made.family,
                       patches.rotary_dim, rotary_dim=stem.rotary_dim, window=stem.window, plain=True,
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
