"""Kimi-VL, as nemo-automodel 0.7.0 `models/kimivl` (`KimiVLForConditionalGeneration`): MoonViT before DeepSeek-V3.

An image keeps its size, in multiples of the patches that become a token, `merge_kernel_size`. The tower's patches get
interpolated learned positions, and are rotated by row and column. The decoder is DeepSeek-V3's, two modules deeper
(`model.language_model.model`), with the head beside its model. transformers 5.23 has no such class; published files
name code of their own, whose fields these are.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import deepseek
from simcore.models.placed_blocks import MoonEnd, MoonLayer, MoonNorm, MoonPatches
from simcore.models.vision.around import decoder_of, image_sides, part_of, stem_of, with_layers

__all__ = ["FAMILY"]

_TOWER, _FAMILY = "model.vision_tower", "kimi_vl"
_Parts = tuple[tuple[str, LayerKind], ...]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `KimiVLConfig`; InputError for values that are not modelled."""
    made = deepseek.architecture(with_layers(config, part_of(config, "text_config", "deepseek_v3"), tied=False))
    vision = part_of(config, "vision_config", "moonvit")
    merged = _merged(vision)
    patches = _patches(config, vision, merged)
    layers = vision.integer("num_hidden_layers", default=27)
    end = MoonEnd(patches.count, patches.width, merged**2, made.hidden, layers + 3, decoder_of(made),
                  patches.patch)
    return _with_tower(made, _tower(vision, patches, layers, end))


def _merged(vision: Config) -> int:
    """Patches of a side of a token: squares of two by two."""
    if list(vision.fields.get("merge_kernel_size", (2, 2))) != [2, 2]:
        raise vision.fail("merge_kernel_size", "expected [2, 2], squares of two by two patches: others are not "
                          "modelled yet")
    return 2


def _patches(config: Config, vision: Config, merged: int) -> MoonPatches:
    """Three channels of an image, once; heads are rotated in four parts (Rope2DPosEmb)."""
    width, heads = vision.integer("hidden_size", default=1152), vision.integer("num_attention_heads", default=16)
    if width % heads or width // heads % 4:
        raise vision.fail("num_attention_heads", f"expected a divisor of hidden_size {width}, in heads of four parts, "
                          f"got {heads}")
    patch = vision.integer("patch_size", default=14)
    rows, columns = image_sides(config, merged * patch)
    table = (vision.integer("init_pos_emb_height", default=64), vision.integer("init_pos_emb_width", default=64))
    return MoonPatches(merged * rows, merged * columns, patch, 1, 3, width, width // heads, table)


def _tower(vision: Config, patches: MoonPatches, layers: int, end: MoonEnd) -> _Parts:
    layer = MoonLayer(patches.count, patches.width, patches.width // patches.rotary_dim,
                      vision.integer("intermediate_size", default=4304))
    norm = MoonNorm(patches.count, patches.width, layers, patches.rotary_dim)
    kind = LayerKind("vision_patches", _FAMILY, patches.width, block=patches)
    return (
        (f"{_TOWER}.patch_embed", kind),
        *((f"{_TOWER}.encoder.blocks.{i}", replace(kind, name="vision_layer", block=replace(layer, first=not i)))
          for i in range(layers)),
        (f"{_TOWER}.encoder.final_layernorm", replace(kind, name="vision_norm", block=norm)),
        ("model.multi_modal_projector", LayerKind("vision_projector", _FAMILY, end.hidden, block=end)),
    )


def _with_tower(made: Architecture, tower: _Parts) -> Architecture:
    """The decoder `made` inside `model.language_model`, the tower between its embedding and its first layer."""
    (path, stem), *others = made.parts
    first = (path, replace(stem, block=replace(stem_of(made), tower=len(tower))))
    parts = tuple((at if at == "loss" else f"model.language_model.{at}", kind) for at, kind in (first, *others))
    return replace(made, family=_FAMILY, parts=(parts[0], *tower, *parts[1:]))


FAMILY = ModelFamily(architecture)
