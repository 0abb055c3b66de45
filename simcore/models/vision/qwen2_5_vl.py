"""Qwen 2.5 VL, as transformers 5.23 `Qwen2_5_VLForConditionalGeneration`.

An image keeps its size, in multiples of two patches, each of 14 pixels: four patches become a token. Patches attend to
those of their window, in some layers to all of their image (`models/qwen2_5_vl`; `vision_utils.py`,
get_vision_window_index). The decoder is Qwen 2 with positions by time, row and column, one module deeper
(`model.language_model`). Published configurations have the decoder's fields beside `vision_config`, or in a
`text_config`.
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
    """Layers and sizes of a model with a `Qwen2_5_VLConfig`; InputError for values that are not modelled."""
    text = _text(config)
    vision = part_of(config, "vision_config", "qwen2_5_vl")
    made = qwen.architecture(text)
    heads, width = vision.integer("num_heads", default=16), vision.integer("hidden_size", default=1280)
    if width % heads or width // heads % 4:
        raise vision.fail("num_heads", f"expected a divisor of hidden_size {width}, in heads of four parts, got "
                          f"{heads}")
    merge = vision.integer("spatial_merge_size", default=2)
    patch = vision.integer("patch_size", "spatial_patch_size", default=14)
    rows, columns = image_sides(config, merge * patch)
    patches = GridPatches(merge * rows, merge * columns, patch, vision.integer("temporal_patch_size", default=2),
                          vision.integer("in_channels", "in_chans", default=3), width, width // heads, merge**2)
    if vision.integer("out_hidden_size", default=3584) != made.hidden:
        raise vision.fail("out_hidden_size", f"expected the decoder's hidden_size {made.hidden}")
    end = Merger(patches.count, width, merge**2, made.hidden, below=vision.integer("depth", default=32) + 2,
                 decoder=decoder_of(made, _TEXT), pixels=patches.pixels, patch_rotary_dim=width // heads)
    tower = _tower(vision, patches, heads, _windows(vision, rows, columns, merge, patch), end)
    return with_tower(made, "qwen2_5_vl", tower, [(f"{_TOWER}.rotary_pos_emb.inv_freq", 2 * 4 * (width // heads // 4))])


def _text(config: Config) -> Config:
    """The decoder's configuration: a `text_config`, or the model's own fields."""
    if "text_config" in config.fields:
        found = with_layers(config, part_of(config, "text_config", _TEXT), tied=False, forwards=True)
    else:
        found = Config({**config.fields, "model_type": _TEXT}, config.where)
    found.refuse("use_sliding_window")
    return found


def _windows(vision: Config, rows: int, columns: int, merge: int, patch: int) -> tuple[int, ...]:
    """Patches of each window of an image of `rows` x `columns` squares, row by row; those at its ends are smaller."""
    side = vision.integer("window_size", default=112) // merge // patch
    if not side:
        raise vision.fail("window_size", f"expected at least {merge * patch} pixels, a square of patches")

    def sides(count: int) -> list[int]:
        return [min(side, count - start) for start in range(0, count, side)]

    return tuple(merge**2 * height * width for height in sides(rows) for width in sides(columns))


def _tower(vision: Config, patches: GridPatches, heads: int, windows: tuple[int, ...],
           end: Merger) -> tuple[tuple[str, LayerKind], ...]:
    vision.choice("hidden_act", ("silu",))
    whole = vision.fields.get("fullatt_block_indexes", [7, 15, 23, 31])
    if not isinstance(whole, list):
        raise vision.fail("fullatt_block_indexes", f"expected a list of layer numbers, got {whole!r}")
    layer = GridLayer(windows, patches.width, heads, vision.integer("intermediate_size", default=3420))
    of_tower = LayerKind("vision_patches", "qwen2_5_vl", patches.width, block=patches)
    blocks = (replace(layer, parts=(patches.count,) if i in whole else windows, first=not i)
              for i in range(end.below - 2))
    return (
        (f"{_TOWER}.patch_embed", of_tower),
        *((f"{_TOWER}.blocks.{i}", replace(of_tower, name="vision_layer", block=block))
          for i, block in enumerate(blocks)),
        (f"{_TOWER}.merger", LayerKind("vision_merger", "qwen2_5_vl", end.hidden, block=end)),
    )


FAMILY = ModelFamily(architecture)
