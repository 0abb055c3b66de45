"""InternVL 3 and 3.5, as transformers 5.23 `InternVLForConditionalGeneration`: InternViT before Qwen.

An image, or a tile of one, has one size; squares of its patches become tokens (`models/internvl`, pixel_shuffle). The
decoder is that of `qwen2` or `qwen3`, one module deeper (`model.language_model`). Head and embedding share a weight
where the model's own configuration says nothing, whatever `text_config` says (`configuration_internvl.py`).
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import LayerKind
from simcore.models.class_blocks import ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import qwen
from simcore.models.vision.around import decoder_of, part_of, with_layers, with_tower

__all__ = ["FAMILY"]

_TOWER = "model.vision_tower"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with an `InternVLConfig`; InputError for values that are not modelled."""
    made = qwen.architecture(with_layers(config, part_of(config, "text_config", "qwen2", "qwen3"), tied=True))
    vision = part_of(config, "vision_config", "internvl_vision")
    config.choice("projector_hidden_act", ("gelu",))
    config.choice("vision_feature_select_strategy", ("default",))
    if config.fields.get("vision_feature_layer", -1) != -1 or config.fields.get("downsample_ratio", 0.5) != 0.5:
        raise config.fail("vision_feature_layer", "expected -1, and a downsample_ratio of 0.5: others are not modelled "
                          "yet")
    patches, layers = _patches(vision), vision.integer("num_hidden_layers", default=24)
    end = ShuffledEnd(patches.count, patches.width, 4, layers, made.hidden, layers + 2, decoder_of(made),
                      patches.pixels)
    return with_tower(made, "internvl", _tower(vision, patches, end), [])


def _patches(vision: Config) -> ScaledPatches:
    """Front of the tower; InputError for sides that are no squares, or that squares of patches do not divide."""
    image, patch = (_side(vision, name, default) for name, default in (("image_size", 448), ("patch_size", 14)))
    if image % (2 * patch):
        raise vision.fail("image_size", f"expected a multiple of two patches of {patch}, got {image}")
    vision.refuse("use_mask_token", "use_qk_norm")
    for name in ("use_absolute_position_embeddings", "use_mean_pooling"):
        if not vision.boolean(name, default=True):
            raise vision.fail(name, "expected true: the other is not modelled yet")
    return ScaledPatches(image, patch, vision.integer("num_channels", default=3),
                         vision.integer("hidden_size", default=1024))


def _side(vision: Config, name: str, default: int) -> int:
    """The one length of both sides, which may be given as a list."""
    given = vision.fields.get(name, default)
    if isinstance(given, list) and len(set(given)) == 1:
        given = given[0]
    return Config({name: given}, vision.where).integer(name)


def _tower(vision: Config, patches: ScaledPatches, end: ShuffledEnd) -> tuple[tuple[str, LayerKind], ...]:
    vision.choice("hidden_act", ("gelu",))
    vision.choice("norm_type", ("layer_norm",))
    for name in ("attention_dropout", "hidden_dropout_prob", "projection_dropout"):
        if vision.fraction(name, 0):
            raise vision.fail(name, "not modelled yet")
    heads = vision.integer("num_attention_heads", default=16)
    if patches.width % heads:
        raise vision.fail("num_attention_heads", f"expected a divisor of hidden_size {patches.width}, got {heads}")
    layer = ScaledLayer(patches.count, patches.width, heads, vision.integer("intermediate_size", default=4096),
                        bias=vision.boolean("attention_bias", default=False))
    kind = LayerKind("vision_layer", "internvl", patches.width, block=layer)
    return (
        (_TOWER, LayerKind("vision_patches", "internvl", patches.width, block=patches)),
        *((f"{_TOWER}.encoder.layer.{i}", replace(kind, block=replace(layer, first=not i)))
          for i in range(end.layers)),
        ("model.multi_modal_projector", LayerKind("vision_projector", "internvl", end.hidden, block=end)),
    )


FAMILY = ModelFamily(architecture)
