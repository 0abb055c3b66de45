"""Layout of a tensor on the mesh: its placements, dtype and memory space.

Placements are DTensor's (torch 2.13 `tensor/placement_types.py`) and two that DTensor lacks: `Flat`, a one-dimensional
cut of many tensors laid end to end (Megatron, ZeRO, FSDP1), and `Local`, unrelated copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcore.errors import IllegalLayout, Problem
from simcore.placement.extent import Extent
from simcore.placement.mesh import Mesh
from simcore.recording.number_formats import PackedWeights
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
    """Placement on a mesh axis: the tensor is cut along its dimension `dim`, from 0; `COPIES` (-1): its copies.

    Of d elements of that dimension each of n ranks has `ceil(d / n)`, the last ones less or none. `even`: the framework
    refuses a remainder.
    """

    dim: int
    even: bool = False


@dataclass(frozen=True, slots=True)
class Flat:
    """Placement on a mesh axis: ranks hold equal parts of a buffer in which many tensors lie end to end.

    `scope` says which tensors share a buffer: those of a "unit", a "bucket" or a whole "buffer", or each "tensor"
    alone.
    """

    scope: str


@dataclass(frozen=True, slots=True)
class Replicate:
    """Placement on a mesh axis: the tensor is whole on every rank of it."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Placement on a mesh axis: every rank holds one summand of the tensor, which is their sum."""


@dataclass(frozen=True, slots=True)
class Local:
    """Placement on a mesh axis: ranks hold tensors of the same name and shape whose values are unrelated."""


Placement = Shard | Flat | Replicate | Partial | Local
Placements = tuple[tuple[str, Placement], ...]
"""Outermost cut first; axes not named are Replicate."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A format in which `size` values share one scale of `scale` bytes, and a tensor has a table of `table` bytes.

    Tensors of fewer than `least` values stay in the dtype `otherwise`; if `whole`, so do those whose number of values
    is no multiple of `size`. `part`: "values" or "scales" if only these are counted, because they are stored apart.
    `a_byte`: values that lie in one byte of the stored tensor.
    """

    size: int
    least: int
    otherwise: str
    table: int = 0
    whole: bool = False
    part: str = ""
    scale: int = 4
    a_byte: int = 1

    def num_bytes(self, numel: int, dtype: str) -> int:
        """Returns the bytes of a tensor of `numel` values, each stored in `dtype`, with its scales and table.

        With `part` only the values, or only scales and table; a tensor that is not quantized is stored in `otherwise`
        and has no scales.
        """
        if numel < self.least or (self.whole and numel % self.size):
            return numel * dtype_bytes(self.otherwise) * (self.part != "scales")
        values, scales = numel * dtype_bytes(dtype) // self.a_byte, self.scale * -(-numel // self.size) + self.table
        return {"values": values, "scales": scales}.get(self.part, values + scales)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Layout of a tensor: its placement on the mesh, its dtype and its memory space.

    `space`: device, managed, host_pinned, host, ... `share`: the fraction of its elements that is in `space`. `blocks`:
    its format if values share scales. `packed`: values are packed in 4 or 8 bits; `dtype` is then that of the stored
    tensor, which the placements cut. `least_away`: a tensor of fewer elements is on the device whatever `space` is.
    `extent`: elements of an optimizer state of another shape than its parameter; None: it has the parameter's.
    """

    placements: Placements
    dtype: str
    space: str = "device"
    share: float = 1.0
    blocks: Blocks | None = None
    packed: PackedWeights | None = None
    least_away: int = 0
    extent: Extent | None = None

    def space_of(self, numel: int) -> str:
        """Returns the memory space of a tensor of `numel` elements."""
        return self.space if numel >= self.least_away else "device"

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the stored tensor, which the placements cut, of a tensor of `shape`.

        It is [stored elements, 1] if values are packed into a column, otherwise `shape`.
        """
        return (self.packed.rows(math.prod(shape)), 1) if self.packed and self.packed.is_column else shape

    @property
    def values(self) -> int:
        """Elements of the tensor that one stored element holds; 1 unless values are packed."""
        return 1 if self.packed is None else self.packed.values_a_row

    def num_bytes(self, numel: int) -> int:
        """Returns the bytes of `numel` elements of the tensor, wherever they are.

        Without quantization constants kept apart, and without the scales of `blocks` (`Blocks.num_bytes`).
        """
        return packed_bytes(numel, self.dtype) if self.packed is None else self.packed.data_bytes(numel)

    def constants(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of the quantization constants of a packed tensor of `shape`; 0 if it is not packed."""
        return 0 if self.packed is None else self.packed.constant_bytes(shape)


def shard_rows(size: int, parts: int, coordinate: int) -> int:
    """Returns how much of a dimension of length `size` the rank at `coordinate` of `parts` ranks holds.

    Every rank holds `ceil(size / parts)` of it, the last ones less or 0 (torch.chunk).
    """
    chunk = -(-size // parts)
    return max(0, min(chunk, size - coordinate * chunk))


def shard_intervals(size: int, parts: int) -> tuple[int, ...]:
    """Returns the coordinates, of `parts` ranks, at which the result of `shard_rows` changes.

    In rising order: the first rank with a smaller part and the first with none; empty if all parts are equal.
    """
    chunk = -(-size // parts)
    full, rest = divmod(size, chunk)
    edges = (full, full + 1) if rest else (full,)
    return tuple(edge for edge in edges if edge < parts)


def local_shape(copies: int, shape: tuple[int, ...], placements: Placements, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Returns (copies, dimensions...) of the part that `rank` holds, without padding.

    Only `Shard` cuts are applied; `Flat` ones are not.
    """
    local = [copies, *shape]
    for name, placement in placements:
        if isinstance(placement, Shard):
            axis = mesh.axis(name)
            at = placement.dim + 1
            local[at] = shard_rows(local[at], axis.size, axis.coordinate(rank))
    return tuple(local)


def padded_numel(copies: int, shape: tuple[int, ...], placements: Placements, mesh: Mesh) -> int:
    """Returns the elements, all copies together, of each rank's storage: cut dimensions are divided and rounded up.

    Only `Shard` cuts are applied; `Flat` ones are not.
    """
    local = [copies, *shape]
    for name, placement in placements:
        if isinstance(placement, Shard):
            local[placement.dim + 1] = -(-local[placement.dim + 1] // mesh.axis(name).size)
    return math.prod(local)


def require_even(name: str, shape: tuple[int, ...], copies: int, placements: Placements, mesh: Mesh, rule: str) -> None:
    """Raises IllegalLayout, which cites `rule`, if an `even` cut of the tensor `name` leaves a remainder."""
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
    """Returns the collective that turns `source` into `destination` on one axis; None if no data moves.

    Shard -> Replicate all_gather, Partial -> Shard reduce_scatter, Partial -> Replicate all_reduce, Shard(i) ->
    Shard(j) all_to_all; Flat cuts behave like Shard, except that none becomes an all_to_all. Source: torch 2.13 DTensor
    `tensor/_redistribute.py`.
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
