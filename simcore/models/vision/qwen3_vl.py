"""Qwen 3 VL, as transformers 5.23 `Qwen3VLForConditionalGeneration`: a tower whose layers feed several of the decoder.

An image keeps its size, in multiples of two patches, each of 16 pixels: four patches become a token. Features of the
layers `deepstack_visual_indexes` of the tower are added to image tokens behind the first layers of the decoder, one
each. The decoder is Qwen 3 with positions by time, row and column, one module deeper (`model.language_model`).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import qwen
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.vision.around import image_sides, part_of, stem_of, with_layers, with_tower

__all__ = ["FAMILY"]

_TOWER, _TEXT = "model.visual", "qwen3_vl_text"
Parts = tuple[tuple[str, LayerKind], ...]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Qwen3VLConfig`; InputError for values that are not modelled."""
    text = with_layers(config, part_of(config, "text_config", _TEXT), tied=False)
    vision = part_of(config, "vision_config", "qwen3_vl")
    made, patches = qwen.architecture(text), _patches(config, vision)
    merge = vision.integer("spatial_merge_size", default=2)
    if vision.integer("out_hidden_size", default=3584) != made.hidden:
        raise vision.fail("out_hidden_size", f"expected the decoder's hidden_size {made.hidden}")
    stem = stem_of(made)
    merger = DeepMerger(patches.count, patches.width, merge**2, made.hidden)
    end = PlacedMerger(patches.count, patches.width, merge**2, made.hidden, 0, 1, (), _TEXT, patches.pixels,
                       patches.rotary_dim, rotary_dim=stem.rotary_dim)
    fed = _fed(vision)
    tower = _tower(vision, patches, merger, end, fed)
    buffers = [(f"{_TOWER}.rotary_pos_emb.inv_freq", 2 * 4 * (patches.rotary_dim // 4))]
    return with_tower(_feeding(made, merger.tokens, len(fed)), "qwen3_vl", tower, buffers)


def _patches(config: Config, vision: Config) -> PlacedPatches:
    heads, width = vision.integer("num_heads", default=16), vision.integer("hidden_size", default=1152)
    if width % heads or width // heads % 4:
        raise vision.fail("num_heads", f"expected a divisor of hidden_size {width}, in heads of four parts, got "
                          f"{heads}")
    merge, patch = vision.integer("spatial_merge_size", default=2), vision.integer("patch_size", default=16)
    positions = vision.integer("num_position_embeddings", default=2304)
    if isqrt(positions) ** 2 != positions:
        raise vision.fail("num_position_embeddings", f"expected the square of a number, got {positions}")
    rows, columns = image_sides(config, merge * patch)
    return PlacedPatches(merge * rows, merge * columns, patch, vision.integer("temporal_patch_size", default=2),
                         vision.integer("in_channels", default=3), width, width // heads, positions)


def _fed(vision: Config) -> tuple[int, ...]:
    """Layers of the tower whose features enter the decoder, in rising order."""
    given, depth = vision.fields.get("deepstack_visual_indexes", [8, 16, 24]), vision.integer("depth", default=27)
    if not isinstance(given, list) or given != sorted(set(given)) or any(
            not isinstance(one, int) or not 0 <= one < depth for one in given):
        raise vision.fail("deepstack_visual_indexes", f"expected rising numbers of layers below depth {depth}, got "
                          f"{given!r}")
    return tuple(given)


def _tower(vision: Config, patches: PlacedPatches, merger: DeepMerger, end: PlacedMerger,
           fed: tuple[int, ...]) -> Parts:
    """The parts in running order: a merger stands behind each layer that feeds the decoder."""
    vision.choice("hidden_act", ("gelu_pytorch_tanh",))
    layer = PlacedLayer(patches.count, patches.width, patches.width // patches.rotary_dim,
                        vision.integer("intermediate_size", default=4304))
    of_tower = LayerKind("vision_patches", "qwen3_vl", patches.width, block=patches)
    parts, deep = [(_TOWER, of_tower)], list[int]()
    for i in range(vision.integer("depth", default=27)):
        down = 1 + (i - 1 in fed)
        parts.append((f"{_TOWER}.blocks.{i}", replace(of_tower, name="vision_layer", block=replace(layer, down=down))))
        if i in fed:
            deep.append(len(parts))
            parts.append((f"{_TOWER}.deepstack_merger_list.{fed.index(i)}",
                          LayerKind("vision_merger", "qwen3_vl", end.hidden, block=merger)))
    count = len(parts)
    last = replace(end, below=count + 1, down=1 + (deep[-1:] == [count - 1]), deep=tuple(count - at for at in deep))
    return (*parts, (f"{_TOWER}.merger", LayerKind("vision_merger", "qwen3_vl", end.hidden, block=last)))


def _feeding(made: Architecture, tokens: int, count: int) -> Architecture:
    """The decoder whose first `count` layers, or all, are followed by features that the `tokens` of each image get."""
    layers = [path for path, kind in made.parts if kind.block is None]
    numbers = {path: i for i, path in enumerate(layers)}
    parts = tuple((path, replace(kind, fed=tokens * (numbers[path] < count), behind_fed=0 < numbers[path] <= count)
                   if path in numbers else kind) for path, kind in made.parts)
    return replace(made, parts=parts)


FAMILY = ModelFamily(architecture)
