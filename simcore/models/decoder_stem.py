"""Tables and masks that a model makes for its decoder behind the end of a vision tower."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecoderStem"]


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
