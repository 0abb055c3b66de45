"""Projection of a matrix's gradient to a low rank: the side that it shrinks, and the tensors that it needs.

[Note: projectors] galore-torch 1.0 `galore_projector.py`, apollo-torch 1.0.3 `svd_projector.py`, `random_projector.py`.
Of a gradient [rows, columns] a `right` projector [rank, columns] leaves [rows, rank], a `left` one [rows, rank] leaves
[rank, columns], `full` are both. `std` is right where rows are no fewer than columns, else left; `reverse_std` the
other way round. An SVD has no more vectors than the shorter side is long; a random matrix has `rank`, be it more. Rows
of Vh and columns of U are views: in fp32 the projector keeps the whole factor alive, in 16 bits it is a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from simcore.placement.layout import TensorLayout

__all__ = ["PROJECTOR", "LowRankState", "Part", "Projection", "Shape", "projection_of"]

Shape = tuple[int, ...]
Part = Literal["moment", "projector", "norm"]
PROJECTOR: Final = "projector"
"""Name of the state that a projected matrix has beside its moments."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One optimizer's way to project matrices, the same for all of them.

    `rank`; `way`: std, reverse_std, right, left or full; `is_random`: a drawn matrix, no singular vectors; `scales`:
    what of the whole gradient APOLLO multiplies by one factor, "channel" or "tensor"; "" where the update is projected
    back, as GaLore's is.
    """

    rank: int
    way: str
    is_random: bool = False
    scales: str = ""

    def sides(self, shape: Shape) -> tuple[str, ...]:
        """Returns the sides from which projectors multiply a gradient of `shape`: "left", "right" or both."""
        if self.way == "full":
            return ("left", "right")
        if self.way in ("left", "right"):
            return (self.way,)
        return ("right",) if (shape[0] >= shape[1]) == (self.way == "std") else ("left",)

    def kept_rank(self, shape: Shape) -> int:
        """Returns the rank that is left of a matrix of `shape`."""
        return self.rank if self.is_random else min(self.rank, *shape)

    def low(self, shape: Shape) -> Shape:
        """Returns the shape of the projected gradient."""
        rank, sides = self.kept_rank(shape), self.sides(shape)
        return (rank if "left" in sides else shape[0], rank if "right" in sides else shape[1])

    def matrices(self, shape: Shape, size: int) -> Iterator[int]:
        """Yields the elements that each projector of a matrix keeps alive.

        `size`: bytes of an element of its gradient.
        """
        vectors = min(shape) if size == 4 and not self.is_random else self.kept_rank(shape)
        for side in self.sides(shape):
            yield vectors * shape[side == "right"]


def projection_of(states: tuple[tuple[str, TensorLayout], ...]) -> Projection | None:
    """Returns the projection of a parameter with these (name, layout) of optimizer states; None without one."""
    extents = (layout.extent for name, layout in states if name == PROJECTOR)
    return next((extent.projection for extent in extents if isinstance(extent, LowRankState)), None)


@dataclass(frozen=True, slots=True)
class LowRankState:
    """Extent of a state of a projected matrix: its elements by the matrix's shape.

    `part`: "moment"; "projector"; "norm", one number. `size`: bytes of an element of the gradient.
    """

    projection: Projection
    part: Part
    size: int

    def __call__(self, _: str, shape: Shape) -> int:
        """Returns the elements of the state for a matrix of `shape`."""
        if self.part == "moment":
            return math.prod(self.projection.low(shape))
        return sum(self.projection.matrices(shape, self.size)) if self.part == "projector" else 1
