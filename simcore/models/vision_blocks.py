"""The parts of a vision tower: architecture only, no implementation and no parallelism.

All images of a microbatch have one size. They go through the tower as one batch, or, if the model takes images of any
size (`GridPatches`), as one sequence of patches behind each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches, ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.models.decoder_stem import DecoderStem
from simcore.models.placed_blocks import (
    DeepMerger,
    MoonEnd,
    MoonLayer,
    MoonNorm,
    MoonPatches,
    PlacedLayer,
    PlacedMerger,
    PlacedPatches,
)
from simcore.models.pooled_blocks import (
    PooledLayer,
    PooledPatches,
    PooledProjector,
    PooledSound,
    PooledSoundEnd,
    PooledStem,
)
from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector, SoundEncoder, SoundProjector
from simcore.models.tower_shapes import SizedPatches, SquareLayer, SquarePatches

__all__ = ["PARTS", "TOWER_LAYERS", "AnySize", "GridLayer", "GridPatches", "Merger", "Patches", "Projector",
           "RowLayer", "RowPatches", "RowProjector", "SoundPart", "TowerEnd", "TowerLayer", "TowerNorm", "VisionPart",
           "WholePart", "sizes_vary"]


@dataclass(frozen=True, slots=True)
class Patches(SquarePatches):
    """Cut of an image into patches with learned positions; the convolution has a bias."""

    @property
    def count(self) -> int:
        """Number of patches of an image."""
        return self.squares


@dataclass(frozen=True, slots=True)
class TowerLayer(SquareLayer):
    """Layer of a tower: the MLP is around a GELU, attention and MLP are behind LayerNorms with biases."""


@dataclass(frozen=True, slots=True)
class TowerNorm:
    """LayerNorm behind the last of a tower's `layers`; `patches`: of an image, `width`: elements of a patch."""

    patches: int
    width: int
    layers: int


@dataclass(frozen=True, slots=True)
class Projector:
    """End of a tower: patches are averaged, normed, projected, and put in the place of the image's tokens.

    `patches`, `width`: of an image and of a patch; `tokens`: of an image in the sequence; `hidden`: elements of a
    token. `below`: number of layers down to the embedding, whose output it takes in. `decoder`: what the model makes
    for its layers behind it.
    """

    patches: int
    width: int
    tokens: int
    hidden: int
    below: int
    decoder: DecoderStem


@dataclass(frozen=True, slots=True)
class GridPatches(SizedPatches):
    """Patches in the order in which squares of them are merged; the product has no bias.

    `merged`: patches of a square that becomes a token. They are then put in the order of windows, if there are any.
    """

    merged: int
    windows: bool = True


@dataclass(frozen=True, slots=True)
class GridLayer:
    """Layer of a tower of images of any size: attention within parts of an image, and SwiGLU, each behind an RMSNorm.

    All linears have biases; query, key and value are one. `parts`: patches of each part of an image that attends to
    itself, one of all of them without windows. `width`: elements of a patch; `ffn`: of the MLP. `first`: the first
    layer, behind the patches. `plain`: LayerNorms, and an MLP of two linears around a quick GELU.
    """

    parts: tuple[int, ...]
    width: int
    num_heads: int
    ffn: int
    first: bool = False
    plain: bool = False

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return sum(self.parts)

    @property
    def head_dim(self) -> int:
        """Elements of a head of a patch."""
        return self.width // self.num_heads


@dataclass(frozen=True, slots=True)
class Merger:
    """End of a tower of images of any size: an RMSNorm, then an MLP that makes a token of each square of patches.

    The tokens are put in the place of the image's. `patches`, `width`: of an image and of a patch; `merged`: patches of
    a token; `hidden`: elements of a token. `below`: number of layers down to the embedding, whose output it takes in,
    one more than down to the patches. `pixels`: values of an image; `patch_rotary_dim`: elements of a head of the
    tower. `plain`: behind a tower without windows, a LayerNorm. Other fields: see `Projector`.
    """

    patches: int
    width: int
    merged: int
    hidden: int
    below: int
    decoder: DecoderStem
    pixels: int
    patch_rotary_dim: int
    plain: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.patches // self.merged


@dataclass(frozen=True, slots=True)
class RowPatches:
    """Cut of an image of any size into `rows` x `columns` patches in the order of rows, with an RMSNorm behind it.

    A convolution without a bias. `patch`: length of a patch's side in pixels; `width`: elements of a patch in the
    tower. `rotary_dim`: elements of a head, all of which are rotated by row and column.
    """

    rows: int
    columns: int
    patch: int
    channels: int
    width: int
    rotary_dim: int

    @property
    def count(self) -> int:
        """Number of patches of an image."""
        return self.rows * self.columns

    @property
    def pixels(self) -> int:
        """Number of values of an image."""
        return self.count * self.channels * self.patch**2


@dataclass(frozen=True, slots=True)
class RowLayer:
    """Layer of a tower of images of any size: attention under a mask, and SwiGLU, each behind an RMSNorm, no biases.

    The mask parts the images of a microbatch. `patches`: of an image; `width`: elements of a patch; `ffn`: of the MLP.
    """

    patches: int
    width: int
    num_heads: int
    ffn: int

    @property
    def head_dim(self) -> int:
        """Elements of a head of a patch."""
        return self.width // self.num_heads


@dataclass(frozen=True, slots=True)
class RowProjector:
    """Module behind a tower of images of any size: an RMSNorm, a product of squares of patches, and an MLP.

    The tokens are put in the place of the image's. `rows`, `columns`: patches of an image; `layers`: of the tower,
    whose outputs live until it has returned; `merged`: patches of a token. `plain`: the MLP alone, a patch a token;
    `bias`: its linears have biases. Other fields: see `Projector` and `Merger`.
    """

    rows: int
    columns: int
    width: int
    merged: int
    hidden: int
    layers: int
    below: int
    decoder: DecoderStem
    patch_rotary_dim: int
    plain: bool = False
    bias: bool = False

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return self.rows * self.columns

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.patches // self.merged


AnySize = GridPatches | RowPatches | PlacedPatches | MoonPatches | RadioPatches
"""Patches of images whose size a scenario says, but for tiles."""
WholePart = (Patches | TowerLayer | TowerNorm | GridPatches | GridLayer | Merger | RowPatches | RowLayer
             | RowProjector)
"""Parts that a framework with tensor parallelism takes from transformers as they are, whole on every rank."""
TowerEnd = (Projector | Merger | RowProjector | PlacedMerger | RadioProjector | PooledProjector | ClassEnd
            | ShuffledEnd | MoonEnd)
TOWER_LAYERS = (TowerLayer, GridLayer, PlacedLayer, MoonLayer, RowLayer, RadioLayer, PooledLayer, ClassLayer,
                ScaledLayer)
"""Classes of layers of a tower, many of which stand behind each other."""
SoundPart = SoundEncoder | SoundProjector | PooledSound | PooledSoundEnd
"""Parts of a tower that reads sound, which stand before those of the one that reads images."""
PARTS = (Patches, TowerLayer, TowerNorm, Projector, GridPatches, GridLayer, Merger, RowPatches, RowLayer, RowProjector,
         PlacedPatches, PlacedLayer, DeepMerger, PlacedMerger, RadioPatches, RadioLayer, RadioProjector, PooledPatches,
         PooledLayer, PooledProjector, PooledStem, ClassPatches, ClassLayer, ClassEnd, ScaledPatches, ScaledLayer,
         ShuffledEnd, SoundEncoder, SoundProjector, PooledSound, PooledSoundEnd, MoonPatches, MoonLayer, MoonNorm,
         MoonEnd)
"""Classes of all parts of a tower, its end with them."""
VisionPart = (Patches | TowerLayer | TowerNorm | Projector | GridPatches | GridLayer | Merger | RowPatches | RowLayer
              | RowProjector | PlacedPatches | PlacedLayer | DeepMerger | PlacedMerger | RadioPatches | RadioLayer
              | RadioProjector | PooledPatches | PooledLayer | PooledProjector | PooledStem | ClassPatches | ClassLayer
              | ClassEnd | ScaledPatches | ScaledLayer | ShuffledEnd | SoundPart | MoonPatches | MoonLayer | MoonNorm
              | MoonEnd)


def sizes_vary(block: object) -> bool:
    """True for patches of images whose size a scenario says."""
    return isinstance(block, AnySize) and not (isinstance(block, RadioPatches) and block.tiles)
