"""Parts of vision towers whose patches of an image stand behind a learned token: architecture only.

All images have one size, and are one batch (transformers 5.23 `models/clip`; `models/internvl`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.decoder_stem import DecoderStem
from simcore.models.tower_shapes import SquareLayer, SquarePatches

__all__ = ["ClassEnd", "ClassLayer", "ClassPatches", "ScaledLayer", "ScaledPatches", "ShuffledEnd"]


@dataclass(frozen=True, slots=True)
class ClassPatches(SquarePatches):
    """Cut of an image into patches behind a learned token, with learned positions, and a LayerNorm behind them.

    The convolution has no bias.
    """

    @property
    def count(self) -> int:
        """Number of patches of an image, with the token before them."""
        return self.squares + 1


@dataclass(frozen=True, slots=True)
class ClassLayer(SquareLayer):
    """Layer of a tower: the MLP is around a quick GELU, attention and MLP are behind LayerNorms with biases."""


@dataclass(frozen=True, slots=True)
class ClassEnd:
    """End of a tower: its last layer and a LayerNorm of the token, which nothing reads, and two linears.

    The linears read what goes into the last layer, without the token; their outputs take the place of the image's
    tokens. `layer`: the last one; `layers`: of the tower with it; `bias`: the linears have biases. `hidden`: elements
    of a token; `below`: number of layers down to the embedding. Other fields: see `Projector` (`vision_blocks`).
    """

    layer: ClassLayer
    layers: int
    hidden: int
    below: int
    decoder: DecoderStem
    bias: bool

    @property
    def patches(self) -> int:
        """Number of patches of an image, with the token."""
        return self.layer.patches

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.layer.patches - 1


@dataclass(frozen=True, slots=True)
class ScaledPatches(SquarePatches):
    """Cut of an image into patches behind a learned token, with learned positions, and no norm behind them.

    The convolution has a bias.
    """

    @property
    def count(self) -> int:
        """Number of patches of an image, with the token before them."""
        return self.squares + 1


@dataclass(frozen=True, slots=True)
class ScaledLayer(SquareLayer):
    """Layer of a tower: outputs of attention and of a GELU MLP are scaled, element by element, before they are added.

    Each is behind a LayerNorm. `bias`: query, key and value have biases, as all other linears have. Other fields: see
    `SquareLayer`.
    """

    bias: bool = True


@dataclass(frozen=True, slots=True)
class ShuffledEnd:
    """End of a tower: squares of patches side by side, without the token, a LayerNorm, and two linears with biases.

    Their outputs take the place of the image's tokens. `patches`, `width`: of an image, with the token, and of a patch;
    `merged`: patches of a token; `layers`: of the tower; `hidden`: elements of a token; `below`: number of layers down
    to the embedding; `pixels`: values of an image. Other fields: see `Projector` (`vision_blocks`).
    """

    patches: int
    width: int
    merged: int
    layers: int
    hidden: int
    below: int
    decoder: DecoderStem
    pixels: int

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return (self.patches - 1) // self.merged
