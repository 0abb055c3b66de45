"""Parts of a vision tower whose patches get learned positions, and whose features enter several layers of the decoder.

An image keeps its size; positions are taken from a square of learned ones by its sides (transformers 5.23
`models/qwen3_vl`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.decoder_stem import DecoderStem
from simcore.models.tower_shapes import SizedPatches

__all__ = ["DeepMerger", "PlacedLayer", "PlacedMerger", "PlacedPatches"]


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
