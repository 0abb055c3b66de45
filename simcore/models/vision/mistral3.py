"""Mistral 3 and Ministral 3, as transformers 5.23 `Mistral3ForConditionalGeneration`: Pixtral's tower before Mistral.

An image keeps its size, in multiples of the patches that become a token, `spatial_merge_size` each way
(`models/mistral3`, Mistral3PatchMerger). All patches of a microbatch attend to all, under a mask that parts images
(`models/pixtral`). The decoder is that of `mistral`, `ministral3` or `mistral4`, one module deeper
(`model.language_model`). Head and embedding share a weight where the model's own configuration says nothing, whatever
`text_config` says (`configuration_mistral3.py`).
"""

from __future__ import annotations

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import deepseek, mistral
from simcore.models.vision.around import decoder_of, image_sides, part_of, with_layers, with_tower
from simcore.models.vision_blocks import RowLayer, RowPatches, RowProjector

__all__ = ["FAMILY", "pixtral_buffers", "pixtral_parts", "pixtral_patches"]

_TOWER = "model.vision_tower"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Mistral3Config`; InputError for values that are not modelled."""
    text = with_layers(config, part_of(config, "text_config", _text_type(config)), tied=True)
    vision = part_of(config, "vision_config", "pixtral")
    made = (deepseek if text.fields["model_type"] == "mistral4" else mistral).architecture(text)
    merge = config.integer("spatial_merge_size", default=2)
    patches = pixtral_patches(config, vision, merge)
    config.choice("projector_hidden_act", ("gelu",))
    config.refuse("multimodal_projector_bias")
    if config.fields.get("vision_feature_layer", -1) != -1:
        raise config.fail("vision_feature_layer", "expected -1, the last layer of the tower: others are not modelled "
                          "yet")
    layers = vision.integer("num_hidden_layers", default=24)
    end = RowProjector(patches.rows, patches.columns, patches.width, merge**2, made.hidden, layers, layers + 2,
                       decoder_of(made), patches.rotary_dim)
    return with_tower(made, "mistral3", pixtral_parts("mistral3", vision, patches, end), pixtral_buffers(patches))


def _text_type(config: Config) -> str:
    """Family of the decoder; `mistral` if it does not say one."""
    text = config.fields.get("text_config")
    found = text.get("model_type", "mistral") if isinstance(text, dict) else "mistral"
    if found not in ("mistral", "ministral3", "mistral4"):
        raise config.fail("text_config", f"model_type: expected mistral, ministral3 or mistral4, got {found!r}: others "
                          "are not modelled yet behind this tower")
    return str(found)


def pixtral_buffers(patches: RowPatches) -> list[tuple[str, int]]:
    """Buffers of Pixtral's tower as (name, bytes)."""
    return [(f"{_TOWER}.patch_positional_embedding.inv_freq", 2 * 4 * (patches.rotary_dim // 2))]


def pixtral_patches(config: Config, vision: Config, merge: int) -> RowPatches:
    """Front of Pixtral's tower, for images in multiples of `merge` patches each way; InputError for other sizes."""
    patch, width = vision.integer("patch_size", default=16), vision.integer("hidden_size", default=1024)
    heads = vision.integer("num_attention_heads", default=16)
    if width % heads or width // heads % 4:
        raise vision.fail("num_attention_heads", f"expected a divisor of hidden_size {width}, in heads of four parts, "
                          f"got {heads}")
    rows, columns = image_sides(config, merge * patch)
    return RowPatches(merge * rows, merge * columns, patch, vision.integer("num_channels", default=3), width,
                      width // heads)


def pixtral_parts(family: str, vision: Config, patches: RowPatches,
                  end: RowProjector) -> tuple[tuple[str, LayerKind], ...]:
    """Pixtral's tower and its end in a model of `family`; InputError for another activation, or dropout."""
    vision.choice("hidden_act", ("silu",))
    if vision.fraction("attention_dropout", 0):
        raise vision.fail("attention_dropout", "not modelled yet")
    layer = RowLayer(patches.count, patches.width, patches.width // patches.rotary_dim,
                     vision.integer("intermediate_size", default=4096))
    kind = LayerKind("vision_layer", family, patches.width, block=layer)
    return (
        (_TOWER, LayerKind("vision_patches", family, patches.width, block=patches)),
        *((f"{_TOWER}.transformer.layers.{i}", kind) for i in range(end.layers)),
        ("model.multi_modal_projector", LayerKind("vision_projector", family, end.hidden, block=end)),
    )


FAMILY = ModelFamily(architecture)
