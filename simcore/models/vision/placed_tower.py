"""Tower of Qwen 3 VL and Qwen 3.5: patches with learned positions, layers and mergers.

As transformers 5.23 `models/qwen3_vl`. An image keeps its size, in multiples of two patches, each of 16 pixels: four
patches become a token. Layers of Qwen 3 VL's tower feed the decoder too; Qwen 3.5's do not.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from simcore.models.blocks import LayerKind
from simcore.models.config import Architecture, Config
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.vision.around import decoder_of, image_sides, with_tower

__all__ = ["with_placed_tower"]

_TOWER = "model.visual"
_Parts = tuple[tuple[str, LayerKind], ...]


def with_placed_tower(config: Config, vision: Config, made: Architecture, fed: tuple[int, ...] = ()) -> Architecture:
    """The decoder `made` behind the tower that `vision` describes, as a model of `config`'s family.

    `fed`: layers of the tower that feed the decoder, in rising order. InputError for values that are not modelled.
    """
    patches, merge = _patches(config, vision), vision.integer("spatial_merge_size", default=2)
    if vision.integer("out_hidden_size", default=3584) != made.hidden:
        raise vision.fail("out_hidden_size", f"expected the decoder's hidden_size {made.hidden}")
    end = PlacedMerger(patches.count, patches.width, merge**2, made.hidden, 0, 1, (), decoder_of(made),
                       patches.pixels, patches.rotary_dim)
    family = str(config.fields["model_type"])
    buffers = [(f"{_TOWER}.rotary_pos_emb.inv_freq", 2 * 4 * (patches.rotary_dim // 4))]
    return with_tower(_feeding(made, end.tokens, len(fed)), family, _tower(family, vision, patches, end, fed), buffers)


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


def _tower(family: str, vision: Config, patches: PlacedPatches, end: PlacedMerger, fed: tuple[int, ...]) -> _Parts:
    """The parts in running order: a merger stands behind each layer that feeds the decoder."""
    vision.choice("hidden_act", ("gelu_pytorch_tanh",))
    layer = PlacedLayer(patches.count, patches.width, patches.width // patches.rotary_dim,
                        vision.integer("intermediate_size", default=4304))
    of_tower = LayerKind("vision_patches", family, patches.width, block=patches)
    merger = DeepMerger(end.patches, end.width, end.merged, end.hidden)
    of_end = LayerKind("vision_merger", family, end.hidden, block=merger)
    parts, deep, depth = [(_TOWER, of_tower)], list[int](), vision.integer("depth", default=27)
    layers = 2 + depth + len(fed)  # parts up to the decoder's first layer
    for i in range(depth):
        down = 1 + (i - 1 in fed)
        parts.append((f"{_TOWER}.blocks.{i}", replace(of_tower, name="vision_layer", block=replace(layer, down=down))))
        if i in fed:
            own = replace(merger, ahead=layers - len(parts) + len(deep))
            deep.append(len(parts))
            parts.append((f"{_TOWER}.deepstack_merger_list.{fed.index(i)}", replace(of_end, block=own)))
    count = len(parts)
    last = replace(end, below=count + 1, down=1 + (deep[-1:] == [count - 1]), deep=tuple(count - at for at in deep))
    return (*parts, (f"{_TOWER}.merger", replace(of_end, block=last)))


def _feeding(made: Architecture, tokens: int, count: int) -> Architecture:
    """The decoder whose first `count` layers, or all, are followed by features that the `tokens` of each image get."""
    layers = [path for path, kind in made.parts if kind.block is None]
    numbers = {path: i for i, path in enumerate(layers)}
    parts = tuple((path, replace(kind, fed=tokens * (numbers[path] < count), behind_fed=0 < numbers[path] <= count)
                   if path in numbers else kind) for path, kind in made.parts)
    return replace(made, parts=parts)
