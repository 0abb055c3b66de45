"""Parts of vision towers whose patches get learned positions, taken from a square of them by the sides of an image.

An image keeps its size. Features of Qwen 3 VL's enter several layers of the decoder (transformers 5.23
`models/qwen3_vl`); MoonViT's patches are rotated by row and column besides (nemo-automodel 0.7.0 `models/kimivl`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.decoder_stem import DecoderStem
from simcore.models.tower_shapes import SizedPatches, TowerLayer

__all__ = ["DeepMerger", "MoonEnd", "MoonLayer", "MoonNorm", "MoonPatches", "PlacedLayer", "PlacedMerger",
           "PlacedPatches"]


@dataclass(frozen=True, slots=True)
class PlacedPatches(SizedPatches):
    """Patches to each of which one of `positions` learned vectors is added; the product has a bias."""

    positions: int


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """Layer of a tower: attention of each patch to all of its image, and a GELU MLP, each behind a LayerNorm.

    All linears and norms have biases; query, key and value are one linear. `patches`: of an image; `width`: elements of
    a patch; `ffn`: of the MLP. `down`: layers down to the one whose output it takes, 2 behind a `DeepMerger`.
    """

    patches: int
    width: int
    num_heads: int
    ffn: int
    down: int = 1

    @property
    def head_dim(self) -> int:
        """Elements of a head of a patch."""
        return self.width // self.num_heads


@dataclass(frozen=True, slots=True)
class DeepMerger:
    """Features for a layer of the decoder out of a layer of the tower: a LayerNorm of squares of patches, and an MLP.

    `patches`, `width`: of an image and of a patch; `merged`: patches of a square; `hidden`: elements of a token.
    `ahead`: layers up to the one of the decoder behind which the features are added.
    """

    patches: int
    width: int
    merged: int
    hidden: int
    ahead: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.patches // self.merged


@dataclass(frozen=True, slots=True)
class PlacedMerger:
    """End of the tower: a LayerNorm of patches, then an MLP that makes a token of each square of them.

    The tokens are put in the place of the image's. `below`: number of layers down to the embedding, whose output it
    takes in, one more than down to the patches; `down`: down to the one whose output it takes; `deep`: down to each
    `DeepMerger`. `pixels`: values of an image; `patch_rotary_dim`: elements of a head of the tower. Others: see
    `DeepMerger` and `vision_blocks.Projector`.
    """

    patches: int
    width: int
    merged: int
    hidden: int
    below: int
    down: int
    deep: tuple[int, ...]
    decoder: DecoderStem
    pixels: int
    patch_rotary_dim: int

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.patches // self.merged


@dataclass(frozen=True, slots=True)
class MoonPatches(SizedPatches):
    """MoonViT's patches, to each of which a vector is added that is interpolated from a table of learned ones.

    The product has a bias. `table`: rows and columns of the table.
    """

    table: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MoonLayer(TowerLayer):
    """Layer of MoonViT: attention of each patch to all of its image, and a GELU MLP, each behind a LayerNorm.

    All linears and norms have biases; query, key and value are one linear. `patches`: of an image; `width`: elements of
    a patch; `ffn`: of the MLP. `first`: the first layer, whose input the tower holds until its norm has returned.
    """


@dataclass(frozen=True, slots=True)
class MoonNorm:
    """LayerNorm behind the last of MoonViT's `layers`, and the copy that puts the patches of a token side by side.

    `patches`: of an image; `width`: elements of a patch; `rotary_dim`: elements of a head.
    """

    patches: int
    width: int
    layers: int
    rotary_dim: int


@dataclass(frozen=True, slots=True)
class MoonEnd:
    """Projector behind MoonViT: a LayerNorm of patches, then an MLP that makes a token of each square of them.

    The tokens are put in the place of the image's. `below`: number of layers down to the embedding, whose output it
    takes in; `patch`: length of a patch's side in pixels. Others: see `PlacedMerger`.
    """

    patches: int
    width: int
    merged: int
    hidden: int
    below: int
    decoder: DecoderStem
    patch: int

    @property
    def tokens(self) -> int:
        """Tokens of an image in the sequence."""
        return self.patches // self.merged
