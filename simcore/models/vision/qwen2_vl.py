"""Qwen 2 VL, as transformers 5.23 `Qwen2VLForConditionalGeneration`.

An image keeps its size, in multiples of two patches, each of 14 pixels: four patches become a token. Patches attend to
all of their image (`models/qwen2_vl`). The decoder is Qwen 2 with positions by time, row and column, one module deeper
(`model.language_model`): that of Qwen 2.5 VL. Published configurations have the decoder's fields beside
`vision_config`, or in a `text_config`.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import qwen
from simcore.models.vision.around import decoder_of, image_sides, part_of, with_layers, with_tower
from simcore.models.vision_blocks import GridLayer, GridPatches, Merger

__all__ = ["FAMILY"]

_TOWER, _TEXT = "model.visual", "qwen2_5_vl_text"


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Qwen2VLConfig`; InputError for values that are not modelled."""
    vision, made = part_of(config, "vision_config", "qwen2_vl", "qwen2_vl_vision"), qwen.architecture(_text(config))
    patches = _patches(config, vision)
    if vision.integer("hidden_size", default=3584) != made.hidden:
        raise vision.fail("hidden_size", f"expected the decoder's hidden_size {made.hidden}")
    end = Merger(patches.count, patches.width, patches.merged, made.hidden, below=vision.integer(
        "depth", default=32) + 2, decoder=decoder_of(made, _TEXT), pixels=patches.pixels,
                 patch_rotary_dim=patches.rotary_dim, plain=True)
    return with_tower(made, "qwen2_vl", _tower(vision, patches, end), [
        (f"{_TOWER}.rotary_pos_emb.inv_freq", 2 * 4 * (patches.rotary_dim // 4))])


def _text(config: Config) -> Config:
    """The decoder's configuration: a `text_config`, or the model's own fields."""
    if "text_config" in config.fields:
        inside = part_of(config, "text_config", "qwen2_vl_text")
        inside = Config({**inside.fields, "model_type": _TEXT}, inside.where)
        found = with_layers(config, inside, tied=False, forwards=True)
    else:
        found = Config({**config.fields, "model_type": _TEXT}, config.where)
    found.refuse("use_sliding_window")
    return found


def _patches(config: Config, vision: Config) -> GridPatches:
    heads, width = vision.integer("num_heads", default=16), vision.integer("embed_dim", default=1280)
    if width % heads or width // heads % 4:
        raise vision.fail("num_heads", f"expected a divisor of embed_dim {width}, in heads of four parts, got {heads}")
    merge = vision.integer("spatial_merge_size", default=2)
    patch = vision.integer("patch_size", "spatial_patch_size", default=14)
    rows, columns = image_sides(config, merge * patch)
    return GridPatches(merge * rows, merge * columns, patch, vision.integer("temporal_patch_size", default=2),
                       vision.integer("in_channels", "in_chans", default=3), width, width // heads, merge**2,
                       windows=False)


def _tower(vision: Config, patches: GridPatches, end: Merger) -> tuple[tuple[str, LayerKind], ...]:
    vision.choice("hidden_act", ("quick_gelu",))
    ffn = patches.width * vision.integer("mlp_ratio", default=4)
    layer = GridLayer((patches.count,), patches.width, patches.width // patches.rotary_dim, ffn, plain=True)
    kind = LayerKind("vision_layer", "qwen2_vl", patches.width, block=layer)
    return (
        (f"{_TOWER}.patch_embed", LayerKind("vision_patches", "qwen2_vl", patches.width, block=patches)),
        *((f"{_TOWER}.blocks.{i}", replace(kind, block=replace(layer, first=not i))) for i in range(end.below - 2)),
        (f"{_TOWER}.merger", LayerKind("vision_merger", "qwen2_vl", end.hidden, block=end)),
    )


FAMILY = ModelFamily(architecture)
