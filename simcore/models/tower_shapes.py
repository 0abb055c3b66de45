"""Shapes that parts of towers of several families share: patches of an image of one or of any size, a layer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SizedPatches", "SquareLayer", "SquarePatches", "TowerLayer"]


@dataclass(frozen=True, slots=True)
class SquarePatches:
    """Cut of a square image of one size into square patches, by a convolution whose stride is its size.

    `image`, `patch`: length of the side of an image and of a patch, in pixels; `channels`: of a pixel. `width`:
    elements of a patch in the tower.
    """

    image: int
    patch: int
    channels: int
    width: int

    @property
    def squares(self) -> int:
        """Number of patches that an image is cut into."""
        return (self.image // self.patch) ** 2

    @property
    def pixels(self) -> int:
        """Number of values of an image."""
        return self.channels * self.image**2


@dataclass(frozen=True, slots=True)
class TowerLayer:
    """Sizes of a layer of a tower: attention of each patch to all of its image, and an MLP of two linears.

    `patches`: of an image; `width`: elements of a patch; `ffn`: of the MLP. `first`: the first layer, whose input the
    tower holds.
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
class SquareLayer(TowerLayer):
    """Attention of each patch to all of its image and an MLP of two linears, with biases.

    `patches`: of an image, with a token before them if there is one; `width`: elements of a patch; `ffn`: of the MLP.
    `first`: the first layer, whose input the tower holds until it has returned.
    """


@dataclass(frozen=True, slots=True)
class SizedPatches:
    """Cut of an image of any size into `rows` x `columns` patches, a product and a rotation by row and column.

    `patch`: length of a patch's side in pixels; `frames`: copies of an image, as of a video's frames; `width`: elements
    of a patch in the tower; `rotary_dim`: elements of a head, all of which are rotated.
    """

    rows: int
    columns: int
    patch: int
    frames: int
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
        return self.count * self.channels * self.frames * self.patch**2
