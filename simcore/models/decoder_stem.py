"""Tensors that a model makes for its decoder: tables and masks behind a vision tower, inputs of single layers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecoderStem", "OwnInput"]


@dataclass(frozen=True, slots=True)
class DecoderStem:
    """Tables and masks for the decoder's layers, made when images' tokens are in the sequence.

    An `Embedding` makes them in a model without a tower. `text`: the `model_type` of the decoder. Other fields: see
    `blocks.Embedding`.
    """

    text: str
    rotary_dim: int = 0
    window: int = 0
    further_dim: int = 0


@dataclass(frozen=True, slots=True)
class OwnInput:
    """Input of a layer by itself, one of `layers` of `size` columns each that the model makes as one tensor.

    The layer adds what comes of it to the stream last. `last`: no layer above has one.
    """

    size: int
    layers: int
    last: bool = False
