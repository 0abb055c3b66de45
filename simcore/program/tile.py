"""A recorded section as an array that can be placed at any layer, with its sums.

A step has a few hundred tiles, and its sums are computed over these (`Program.tile_sums`), not over twenty thousand
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, pairwise

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.recording.exact_sums import fitting
from simcore.recording.kernel_shape import module_of
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Kernel, Op, Row, Section

__all__ = ["AMOUNT", "AUX", "LAYER", "OP", "SLOT", "STREAM", "LayerRows", "posted_bytes", "small_tile", "stacked",
           "structure"]

OP, LAYER, SLOT, AMOUNT, STREAM, AUX = range(6)
_NOTHING = -(1 << 62)
_FREE, _COMPUTE, _MARK = (int(op) for op in (Op.FREE, Op.COMPUTE, Op.MARK))
_SCAN = int(Kernel.MAMBA_SCAN)
"""Plain integers, because they are compared with every row, and numpy treats an IntEnum as an object."""


def posted_bytes(rows: IntArray) -> IntArray:
    """Bytes that each row adds to allocated memory: positive for allocations, negative for frees, else 0.

    `rows`: operations as an array [row, column], see `Op`.
    """
    amounts: IntArray = np.where(rows[:, OP] <= _FREE, rows[:, AMOUNT], 0)
    return amounts


def stacked(parts: Sequence[IntArray]) -> IntArray:
    """Rows of several arrays [row, column], one after another, in Fortran order because whole columns are read."""
    rows = np.empty((sum(map(len, parts)), 6), dtype=np.int64, order="F")
    return np.concatenate(parts, out=rows)


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Tile: recorded operations of a part of a layer (such as its backward), placed at every equal layer.

    `rows`: array [row, column], see `Op`; column LAYER is an offset from the layer where the tile is placed. `replay`:
    1 for each row of a checkpoint's replay (recomputation), else 0.
    """

    rows: IntArray
    replay: IntArray

    @classmethod
    def of(cls, section: Section) -> LayerRows:
        """Tile of a recorded `Section`; marks around a replay set `replay`, and the unit of every mark is -1 (none)."""
        return cls.of_all((section,))[0]

    @classmethod
    def of_all(cls, sections: Sequence[Section]) -> list[LayerRows]:
        """Tiles of several sections, each as by `of`; one array, because most have a few rows."""
        ends = list(accumulate(len(section.rows) for section in sections))
        numbers = chain.from_iterable(chain.from_iterable(section.rows for section in sections))
        rows = np.fromiter(numbers, dtype=np.int64, count=6 * ends[-1]).reshape(-1, 6)
        replay = np.zeros(len(rows), dtype=np.int64)
        marks = np.flatnonzero(rows[:, OP] == _MARK)
        rows[marks, AMOUNT] = -1
        slots = rows[marks, SLOT]
        stops = [*marks[slots == RECOMPUTE_END].tolist(), *ends]
        for begin in marks[slots == RECOMPUTE_BEGIN].tolist():
            replay[begin:min(stop for stop in stops if stop > begin)] = 1
        return [cls(rows[start:end], replay[start:end]) for start, end in pairwise([0, *ends])]

    @cached_property
    def replayed(self) -> bool:
        """True if any row belongs to a checkpoint's replay."""
        return bool(self.replay.any())

    @cached_property
    def prefix(self) -> IntArray:
        """Sum of allocated minus freed bytes of the tile after each of its rows."""
        return np.cumsum(fitting(posted_bytes(self.rows)))

    @cached_property
    def highest(self) -> int:
        """Index of the row of the tile after which its sum of bytes (`prefix`) is highest."""
        return int(np.argmax(self.prefix))

    @cached_property
    def top_of_replay(self) -> int:
        """Highest value of `prefix` in bytes inside the checkpoint's replay; -2**62 without a replay."""
        return int(self.prefix[self.replay == 1].max()) if self.replayed else _NOTHING

    @cached_property
    def top_of_scan(self) -> int | None:
        """Highest value of `prefix` in bytes until the tile's last Mamba scan; None without a scan."""
        scans = np.flatnonzero((self.rows[:, OP] == _COMPUTE) & (self.rows[:, SLOT] == _SCAN))
        return int(self.prefix[:scans[-1] + 1].max()) if len(scans) else None

    @cached_property
    def nets(self) -> IntArray:
        """Allocated minus freed bytes of each owner over the tile, without zeros, as an array [owner, field].

        Fields: layer offset, slot (index of the owner's name in `Tables.slots`), bytes.
        """
        return _by_owner(self.rows)


def structure(tiles: Sequence[LayerRows]) -> bytes:
    """Digest of the rows of tiles without bytes, FLOPs and shapes: if it is equal, so are streams and phases."""
    rows = np.concatenate([tile.rows for tile in tiles])
    rows[:, AMOUNT] = 0
    is_kernel = np.flatnonzero(rows[:, OP] == _COMPUTE)
    rows[is_kernel, AUX] = 0
    rows[is_kernel, STREAM] = module_of(rows[is_kernel, STREAM])
    lengths = np.array([len(tile.rows) for tile in tiles], dtype=np.int64)
    digest = blake2b(lengths.tobytes(), digest_size=16)
    for part in (rows, *(tile.replay for tile in tiles)):
        digest.update(np.ascontiguousarray(part).data)
    return digest.digest()


@lru_cache(maxsize=1024)
def small_tile(*rows: tuple[int, ...]) -> LayerRows:
    """Tile of a few rows, each given as (op, slot, amount[, stream, handle]); omitted numbers are 0.

    All are of the layer where the tile is placed (offset 0). Equal tiles are one object, whose rows must not be
    changed.
    """
    full: list[Row] = [(op, 0, slot, amount, *(rest or (0, 0))) for op, slot, amount, *rest in rows]
    return LayerRows.of(Section(tuple(full)))


def _by_owner(rows: IntArray) -> IntArray:
    """Rows of (layer offset, slot, bytes) that are not zero; for few rows a dictionary is faster than numpy."""
    sums: dict[tuple[int, int], int] = {}
    for op, layer, slot, amount, _, _ in rows.tolist():
        if op <= _FREE:
            sums[layer, slot] = sums.get((layer, slot), 0) + amount
    table: IntArray = np.array([(*owner, size) for owner, size in sums.items() if size], dtype=np.int64)
    return table.reshape(-1, 3)
