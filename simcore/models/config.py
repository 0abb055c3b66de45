"""A model family, the configuration that it reads, and what it returns: layer kinds in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.block import shorten
from simcore.inputs.bounds import most_of
from simcore.models.blocks import Embedding, LayerKind, Mtp
from simcore.models.vision_blocks import VisionPart

__all__ = ["QUANTIZED", "TEXT_ALONE", "Architecture", "Config", "ModelFamily", "quantization_of", "without_images"]

QUANTIZED: Final = "quantization_config"
"""Field of a configuration whose weights are published in few bits."""
TEXT_ALONE: Final = "text_alone"
"""Field that stands beside a configuration if no sequence has an image."""


@dataclass(frozen=True)  # without slots: what is read of all parts is kept
class Architecture:
    """Layers and sizes of a model that a configuration describes, the same under every implementation.

    `family`: its `model_type`. `parts`: (module path, kind of layer) from embedding to loss; `tied`: the head uses the
    embedding's weight. `pattern`: a letter a layer, without the parts around layers (D dense, E experts, M Mamba, *
    attention, - MLP, H hybrid). `buffers`: bytes outside the layers that every rank holds, as (name, bytes), such as
    rotary frequencies. `assumed`: reason for the shape, where it is not published. `ignored`: (field, what is done
    instead, source) for each field of the configuration that the layers' code does not follow. `resting`: parts of a
    vision tower that is given no images: its parameters are placed, and nothing runs (`without_images`). `announced`:
    modules of multi-token prediction that the configuration says, and that no part is.
    """

    family: str
    parts: tuple[tuple[str, LayerKind], ...]
    vocab: int
    hidden: int
    tied: bool
    pattern: str
    buffers: tuple[tuple[str, int], ...] = ()
    assumed: str = ""
    ignored: tuple[tuple[str, str, str], ...] = ()
    resting: tuple[tuple[str, LayerKind], ...] = ()
    announced: int = 0

    @cached_property
    def decoder(self) -> str:
        """The `model_type` of its layers: that of the configuration inside, where a model reads images."""
        return next((kind.family for _, kind in self.parts if kind.block is None), self.family)

    @cached_property
    def of_border(self) -> int:
        """Elements of a token between two layers: of all residual streams."""
        return self.hidden * next((kind.streams.count for _, kind in self.parts if kind.streams), 1)

    @cached_property
    def has_tower(self) -> bool:
        """True for a model that reads images by a vision tower."""
        return any(isinstance(kind.block, VisionPart) for _, kind in self.parts)


def without_images(made: Architecture) -> Architecture:
    """The model whose sequences are text: the decoder runs, and its tower, if it has one, rests beside it."""
    tower = tuple((path, kind) for path, kind in made.parts if isinstance(kind.block, VisionPart))
    return replace(made, resting=tower, parts=tuple((path, _blind(kind)) for path, kind in made.parts
                                                    if not isinstance(kind.block, VisionPart)))


def _blind(kind: LayerKind) -> LayerKind:
    match kind.block:
        case Embedding():
            return replace(kind, block=replace(kind.block, tower=0))
        case Mtp():
            return replace(kind, block=replace(kind.block, sees=False))
        case _:
            return kind


class Config:
    """A Hugging Face `config.json` that is read strictly: a missing or odd field raises an InputError.

    `fields`: its contents; `where`: the place that errors name.
    """

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def fail(self, field: str, message: str) -> InputError:
        """InputError with `message` about field `field`, for the caller to raise."""
        return InputError(Problem(self.where, f"model configuration: {field}: {message}"))

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Value of the first of the fields `names` that the configuration has; `default` if it has none of them.

        A field that is null counts as missing. InputError if there is no default either, or for anything but an integer
        from `least` to the limit in `bounds`.
        """
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most_of(name):
                raise self.fail(name, f"expected an integer from {least} to {most_of(name):,}, got {shorten(value)}")
            return value
        if default is None:
            raise self.fail(" or ".join(names), "expected an integer, found nothing")
        return default

    def boolean(self, name: str, *, default: bool) -> bool:
        """Value of a true-or-false field, `default` if it is missing; InputError for another value."""
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"expected true or false, got {value!r}")
        return value

    def fraction(self, name: str, default: float) -> float:
        """Value of a field that is a number from 0 to 1, `default` if it is missing; else InputError."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.fail(name, f"expected a number from 0 to 1, got {value!r}")
        return float(value)

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """Value of a field, one of the words `known`; the first of them if it is missing.

        Null counts as missing. InputError for another word.
        """
        value = self.fields.get(name)
        if value is None:
            return known[0]
        if value not in known:
            raise self.fail(name, f"expected {' or '.join(known)}, got {value!r}: others are not modelled yet")
        return str(value)

    def names(self, name: str, default: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
        """Value of a field that is a list of words out of `known`, cut to the length of `default`.

        `default` if it is missing or null; InputError for a shorter list or another word.
        """
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, list) or len(value) < len(default) or any(one not in known for one in value):
            raise self.fail(name, f"expected {len(default)} or more of {', '.join(known)}, got {value!r}")
        return tuple(value[:len(default)])

    def refuse(self, *names: str) -> None:
        """Raises InputError if one of these fields is true, because what it switches on is not modelled."""
        for name in names:
            if self.boolean(name, default=False):
                raise self.fail(name, "not modelled yet")


def quantization_of(fields: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    """Content of a configuration's `quantization_config` (or `compression_config`); None for weights in 16 or 32 bits.

    InputError, with place `where`, for one that is no mapping. vLLM 0.12.0 `config/model.py` _parse_quant_hf_config and
    transformers read these two fields.
    """
    found = fields.get(QUANTIZED) or fields.get("compression_config")
    if found is not None and not isinstance(found, Mapping):
        raise Config(fields, where).fail(QUANTIZED, f"expected a mapping, got {shorten(found)}")
    return found


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One family of models: how its configurations are read.

    Each module of `simcore/models/families/` has one as `FAMILY`. `architecture`: returns the layers of a
    configuration. `further_fields`: fields that it reads though shipped configurations leave them out, so that a
    scenario may override them. `untied`: implementations whose head has a weight that is not the embedding's, whatever
    `tie_word_embeddings` says, each with its source. `tables_by_chunk`: implementations that keep YaRN's cosines and
    sines once for all layers of a chunk, each with its source.
    """

    architecture: Callable[[Config], Architecture]
    further_fields: tuple[str, ...] = ()
    untied: Mapping[str, str] = field(default_factory=dict)
    tables_by_chunk: Mapping[str, str] = field(default_factory=dict)
