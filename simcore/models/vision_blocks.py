"""The parts of a vision tower: architecture only, no implementation and no parallelism.

An image has one size, and all images of a microbatch go through the tower as one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Patches", "Projector", "TowerLayer", "TowerNorm", "VisionPart"]


@dataclass(frozen=True, slots=True)
class Patches:
    """Cut of an image into patches: a convolution with a bias whose stride is its size, and learned positions.

    `image`, `patch`: length of the side of an image and of a patch, in pixels; `channels`: of a pixel. `width`:
    elements of a patch in the tower.
    """

    image: int
    patch: int
    channels: int
    width: int

    @property
    def count(self) -> int:
        """Number of patches of an image."""
        return (self.image // self.patch) ** 2

    @property
    def pixels(self) -> int:
        """Number of values of an image."""
        return self.channels * self.image**2


@dataclass(frozen=True, slots=True)
class TowerLayer:
    """Layer of a tower: attention of each patch to all of its image, and a GELU MLP, each behind a LayerNorm.

    All linears and norms have biases. `patches`: of an image; `width`: elements of a patch; `ffn`: of the MLP. `first`:
    the first layer, whose input the tower holds until it has returned.
    """

    patches: int
    width: int
    num_heads: int
    ffn: int
    first: bool = False

    @property
    def head_dim(self) -> int:
        """Elements of a head of a patch."""
        return self.width // self.num_heads


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
    token. `below`: number of layers down to the embedding, whose output it takes in. The model makes tables and masks
    for its layers behind it: `text` is the `model_type` of its decoder, the last three are those of an `Embedding`.
    """

    patches: int
    width: int
    tokens: int
    hidden: int
    below: int
    text: str
    rotary_dim: int = 0
    window: int = 0
    further_tables: int = 0


VisionPart = Patches | TowerLayer | TowerNorm | Projector
