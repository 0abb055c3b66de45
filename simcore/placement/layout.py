"""Layout of a tensor on the mesh: its placements, dtype and memory space.

Placements are DTensor's (torch 2.13 `tensor/placement_types.py`) and two that DTensor lacks: `Flat`, a one-dimensional
cut of many tensors laid end to end (Megatron, ZeRO, FSDP1), and `Local`, unrelated copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcore.errors import IllegalLayout, Problem
from simcore.placement.mesh import Mesh
from simcore.recording.packed_weights import PackedWeights
from simcore.units import dtype_bytes, packed_bytes

__all__ = [
    "COPIES",
    "Blocks",
    "Flat",
    "Local",
    "Partial",
    "Placement",
    "Placements",
    "Replicate",
    "Shard",
    "TensorLayout",
    "collective",
    "local_shape",
    "shard_intervals",
    "shard_rows",
]

COPIES = -1
"""Dimension number that means: the copies of a tensor themselves (one weight an expert)."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Cut along tensor dimension `dim`, `ceil(d / n)` rows a rank. `even`: the framework refuses a remainder."""

    dim: int
    even: bool = False


@dataclass(frozen=True, slots=True)
class Flat:
    """A cut of many tensors laid end to end; `scope`: tensor, unit, bucket or buffer."""

    scope: str


@dataclass(frozen=True, slots=True)
class Replicate:
    """Whole on every rank."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank holds a summand."""


@dataclass(frozen=True, slots=True)
class Local:
    """Unrelated tensors that share a name."""


Placement = Shard | Flat | Replicate | Partial | Local
Placements = tuple[tuple[str, Placement], ...]
"""Outermost cut first; axes not named are Replicate."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A format in which `size` values share one fp32 scale, and a tensor has a table of `table` bytes.

    Tensors of fewer than `least` values stay in the dtype `otherwise`; if `whole`, so do those whose number of values
    is no multiple of `size`. `part`: "values" or "scales" if only these are counted, because they are stored apart.
    """

    size: int
    least: int
    otherwise: str
    table: int = 0
    whole: bool = False
    part: str = ""

    def num_bytes(self, numel: int, dtype: str) -> int:
        """Returns the bytes of a tensor of `numel` values, each stored in `dtype`."""
        if numel < self.least or (self.whole and numel % self.size):
            return numel * dtype_bytes(self.otherwise) * (self.part != "scales")
        values, scales = numel * dtype_bytes(dtype), 4 * -(-numel // self.size) + self.table
        return {"values": values, "scales": scales}.get(self.part, values + scales)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Placements, dtype and memory space of a tensor. `share`: the fraction of its elements that is in `space`.

    `space`: device, managed, host_pinned, host, ... `packed`: values are packed in 4 or 8 bits; `dtype` is then that of
    the stored tensor, which the placements cut. `least_away`: a tensor of fewer elements is on the device whatever
    `space` is.
    """

    placements: Placements
    dtype: str
    space: str = "device"
    share: float = 1.0
    blocks: Blocks | None = None
    packed: PackedWeights | None = None
    least_away: int = 0

    def space_of(self, numel: int) -> str:
        """Returns the memory space of a tensor of `numel` elements."""
        return self.space if numel >= self.least_away else "device"

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape that the placements cut: [rows, 1] for a packed column, otherwise `shape`."""
        return (self.packed.rows(math.prod(shape)), 1) if self.packed and self.packed.is_column else shape

    @property
    def values(self) -> int:
        """Elements of the tensor that one stored element holds; 1 unless values are packed."""
        return 1 if self.packed is None else self.packed.values_a_row

    def num_bytes(self, numel: int) -> int:
        """Returns the bytes of `numel` elements of the tensor, without the constants of packed values."""
        return packed_bytes(numel, self.dtype) if self.packed is None else self.packed.data_bytes(numel)

    def constants(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of the quantization constants of a packed tensor of `shape`; 0 if it is not packed."""
        return 0 if self.packed is None else self.packed.constant_bytes(shape)


def shard_rows(size: int, parts: int, coordinate: int) -> int:
    """Returns the rows of a dimension of `size` on one of `parts` ranks (torch.chunk: the last ranks may have none)."""
    chunk = -(-size // parts)
    return max(0, min(chunk, size - coordinate * chunk))


def shard_intervals(size: int, parts: int) -> tuple[int, ...]:
    """Returns the coordinates at which `shard_rows` changes: the first of the partial and of the empty ranks."""
    chunk = -(-size // parts)
    full, rest = divmod(size, chunk)
    edges = (full, full + 1) if rest else (full,)
    return tuple(edge for edge in edges if edge < parts)


def local_shape(copies: int, shape: tuple[int, ...], placements: Placements, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Returns (copies, dimensions...) of `rank`'s part, without padding; Flat cuts are not applied here."""
    local = [copies, *shape]
    for name, placement in placements:
        if isinstance(placement, Shard):
            axis = mesh.axis(name)
            at = placement.dim + 1
            local[at] = shard_rows(local[at], axis.size, axis.coordinate(rank))
    return tuple(local)


def padded_numel(copies: int, shape: tuple[int, ...], placements: Placements, mesh: Mesh) -> int:
    """Returns the elements of storage on every rank: each cut dimension is rounded up."""
    local = [copies, *shape]
    for name, placement in placements:
        if isinstance(placement, Shard):
            local[placement.dim + 1] = -(-local[placement.dim + 1] // mesh.axis(name).size)
    return math.prod(local)


def require_even(name: str, shape: tuple[int, ...], copies: int, placements: Placements, mesh: Mesh, rule: str) -> None:
    """Raises IllegalLayout, with `rule`, when an `even` cut leaves a remainder. `name`: of the tensor."""
    local = [copies, *shape]
    for axis_name, placement in placements:
        if not isinstance(placement, Shard):
            continue
        size, at = mesh.axis(axis_name).size, placement.dim + 1
        if placement.even and local[at] % size:
            what = "copies" if placement.dim == COPIES else f"dimension {placement.dim} of {tuple(local[1:])}"
            raise IllegalLayout(Problem(f"mesh.{axis_name}", f"{name}: {what} must be divisible by {size}", rule))
        local[at] = -(-local[at] // size)


def collective(source: Placement, destination: Placement) -> str | None:
    """Returns the collective that turns one placement into another on the same axis; None when no data moves.

    Shard -> Replicate all-gather, Partial -> Shard reduce-scatter, Partial -> Replicate all-reduce,
    Shard(i) -> Shard(j) all-to-all; Flat cuts behave like Shard. Source: torch 2.13 DTensor `tensor/_redistribute.py`.
    """
    cut = (Shard, Flat)
    if isinstance(source, cut) and isinstance(destination, Replicate):
        return "all_gather"
    if isinstance(source, Partial):
        return "reduce_scatter" if isinstance(destination, cut) else _summed(destination)
    if isinstance(source, Shard) and isinstance(destination, Shard) and source.dim != destination.dim:
        return "all_to_all"
    return None


def _summed(destination: Placement) -> str | None:
    return "all_reduce" if isinstance(destination, Replicate) else None
