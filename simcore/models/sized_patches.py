"""Patches of an image of any size, which towers of several families begin with."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SizedPatches"]


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
