"""Parts common to models that read images: configurations inside, and a tower between embedding and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.models.blocks import Embedding, LayerKind
from simcore.models.config import Architecture, Config
from simcore.models.decoder_stem import DecoderStem

__all__ = ["IMAGE_SIDES", "decoder_of", "image_sides", "part_of", "stem_of", "with_layers", "with_tower"]

IMAGE_SIDES = "image_sides"
"""Field under which the sides of an image, [height, width] in pixels, stand beside a configuration that has none."""
_OF_TEXT = ("head_dim", "chunk_size", "layers_block_type", "layer_types")


def part_of(config: Config, name: str, *model_types: str) -> Config:
    """The configuration `name` inside; InputError if there is none, or for a `model_type` that is none of those.

    `model_types`: the first is taken where it says none.
    """
    fields = config.fields.get(name)
    if not isinstance(fields, dict):
        raise config.fail(name, "expected a configuration, with its fields")
    found = Config({"model_type": model_types[0], **fields}, f"{config.where}: {name}")
    found.choice("model_type", model_types)
    return found


def with_layers(config: Config, text: Config, *, tied: bool, forwards: bool = False) -> Config:
    """The text's configuration with what the model's says of it: tied embeddings; other sizes if given.

    `tied`: what holds if nothing is said. `forwards`: what the text's says ties them too, whatever the model's says
    (transformers 5.23 `models/qwen2_vl`, `qwen2_5_vl` and `llava`: __post_init__). InputError for other fields of a
    decoder beside it, which transformers would not read.
    """
    for name in _OF_TEXT:
        if name in config.fields:
            raise config.fail(name, "a field of text_config: nothing reads it beside that")
    ties = config.boolean("tie_word_embeddings", default=tied)
    ties |= forwards and text.boolean("tie_word_embeddings", default=False)
    fields = {**text.fields, "tie_word_embeddings": ties}
    for name in ("num_hidden_layers", "vocab_size", "mtp_num_layers"):
        if name in config.fields:
            fields[name] = config.integer(name, least=int(name != "mtp_num_layers"))
    return Config(fields, text.where)


def image_sides(config: Config, unit: int) -> tuple[int, int]:
    """(height, width) of an image in multiples of `unit` pixels; 16 of them each where no scenario says a size.

    InputError for sides that are no multiples: the model's processor would have resized the image.
    """
    sides = config.fields.get(IMAGE_SIDES)
    if not isinstance(sides, list):
        return 16, 16
    if any(side % unit for side in sides):
        raise config.fail(IMAGE_SIDES, f"expected multiples of {unit} pixels, as the model's processor makes them, got "
                          f"{' x '.join(map(str, sides))}")
    height, width = sides
    return height // unit, width // unit


def stem_of(made: Architecture) -> Embedding:
    """The embedding of a decoder."""
    block = made.parts[0][1].block
    assert isinstance(block, Embedding)
    return block


def decoder_of(made: Architecture, text: str = "") -> DecoderStem:
    """Tables and masks for a decoder behind a tower; `text`: its `model_type`, its family's if ""."""
    stem = stem_of(made)
    return DecoderStem(text or made.family, stem.rotary_dim, stem.window, stem.further_dim)


def with_tower(made: Architecture, family: str, tower: Sequence[tuple[str, LayerKind]],
               buffers: Sequence[tuple[str, int]]) -> Architecture:
    """The decoder `made`, one module deeper, as a model of `family` with the parts of a `tower` and its `buffers`."""
    (path, stem), *others = made.parts
    first = (path, replace(stem, block=replace(stem_of(made), tower=len(tower))))
    parts = tuple((_deeper(at), kind) for at, kind in (first, *others))
    return replace(made, family=family, parts=(parts[0], *tower, *parts[1:]),
                   buffers=(*buffers, *((_deeper(name), size) for name, size in made.buffers)))


def _deeper(path: str) -> str:
    return path.replace("model.", "model.language_model.", 1) if path.startswith("model.") else path
