"""A recorded section as an array, ready to be laid at any layer, with what it adds up to.

A step is a few hundred tiles; what a tile adds, its highest moment and its calls are worked out once, so that a step of
twenty thousand rows is weighed in a few hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.recording.exact_sums import fitting
from simcore.recording.kernel_shape import module_of
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Kernel, Op, Row, Section, Stream

__all__ = ["AMOUNT", "AUX", "LAYER", "OP", "SLOT", "STREAM", "LayerRows", "posted_bytes", "small_tile"]

OP, LAYER, SLOT, AMOUNT, STREAM, AUX = range(6)
_NOTHING = -(1 << 62)
_FREE, _COMPUTE, _COLLECTIVE, _COPY, _MARK = (int(op) for op in (Op.FREE, Op.COMPUTE, Op.COLLECTIVE, Op.COPY, Op.MARK))
_RECEIVE, _SCAN = int(Stream.RECEIVE), int(Kernel.MAMBA_SCAN)
"""Plain integers: these are looked up for every row, and numpy takes an IntEnum for an object."""


def posted_bytes(rows: IntArray) -> IntArray:
    """Signed bytes of each row; 0 where it posts nothing."""
    amounts: IntArray = np.where(rows[:, OP] <= _FREE, rows[:, AMOUNT], 0)
    return amounts


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Rows with layers as offsets; `replay` marks those of a checkpoint's replay."""

    rows: IntArray
    replay: IntArray

    @classmethod
    def of(cls, section: Section) -> LayerRows:
        """The tile of a recorded section; the marks of a replay become its flags."""
        kept: list[Row] = []
        replay: list[int] = []
        inside = 0
        for row in section.rows:
            if row[0] == _MARK and row[2] in (RECOMPUTE_BEGIN, RECOMPUTE_END):
                inside = int(row[2] == RECOMPUTE_BEGIN)
            kept.append(row if row[0] != _MARK else (*row[:3], -1, *row[4:]))
            replay.append(inside)
        return cls(np.array(kept, dtype=np.int64).reshape(-1, 6), np.array(replay, dtype=np.int64))

    @cached_property
    def structure(self) -> bytes:
        """A digest of the rows without their bytes, FLOPs and shapes: what streams and phases are made of."""
        rows = self.rows.copy()
        rows[:, AMOUNT] = 0
        is_kernel = rows[:, OP] == _COMPUTE
        rows[is_kernel, AUX] = 0
        rows[is_kernel, STREAM] = module_of(rows[is_kernel, STREAM])
        return blake2b(rows.tobytes() + self.replay.tobytes(), digest_size=16).digest()

    @cached_property
    def replayed(self) -> bool:
        """Whether any of it is a replay."""
        return bool(self.replay.any())

    @cached_property
    def prefix(self) -> IntArray:
        """Bytes added after each row."""
        return np.cumsum(fitting(posted_bytes(self.rows)))

    @cached_property
    def net(self) -> int:
        """Bytes added in all."""
        return int(self.prefix[-1])

    @cached_property
    def highest(self) -> int:
        """The row after which most is added."""
        return int(np.argmax(self.prefix))

    @cached_property
    def top(self) -> int:
        """Bytes added then."""
        return int(self.prefix[self.highest])

    @cached_property
    def top_of_replay(self) -> int:
        """The most that is added inside the replay."""
        return int(self.prefix[self.replay == 1].max()) if self.replayed else _NOTHING

    @cached_property
    def top_of_scan(self) -> int | None:
        """The most that is added until a Mamba scan is over; None where there is none."""
        scans = np.flatnonzero((self.rows[:, OP] == _COMPUTE) & (self.rows[:, SLOT] == _SCAN))
        return int(self.prefix[:scans[-1] + 1].max()) if len(scans) else None

    @cached_property
    def nets(self) -> IntArray:
        """What each owner holds more or less in the end: rows of (layer offset, slot, bytes)."""
        return _by_owner(self.rows)

    def nets_until(self, row: int) -> IntArray:
        """`nets` after a row."""
        return _by_owner(self.rows[:row + 1])

    @cached_property
    def calls(self) -> IntArray:
        """Collectives, copies and what is sent, not received: rows of (communication row, payload bytes, is replay)."""
        op = self.rows[:, OP]
        sent = ((op == _COLLECTIVE) | (op == _COPY)) & (self.rows[:, STREAM] != _RECEIVE)
        at = np.flatnonzero(sent)
        return np.stack([self.rows[at, SLOT], self.rows[at, AMOUNT], self.replay[at]], axis=1)


@lru_cache(maxsize=1024)
def small_tile(*rows: tuple[int, ...]) -> LayerRows:
    """Rows of (op, slot, amount, stream, handle), of the layer where the tile is laid; what is left out is 0.

    Equal ones are one tile, and nobody changes its rows: those of stage borders do not depend on what a layer is.
    """
    full: list[Row] = [(op, 0, slot, amount, *(rest or (0, 0))) for op, slot, amount, *rest in rows]
    return LayerRows.of(Section(tuple(full)))


def _by_owner(rows: IntArray) -> IntArray:
    """Rows of (layer offset, slot, bytes) that are not zero; a dictionary is faster than numpy on so few rows."""
    sums: dict[tuple[int, int], int] = {}
    for op, layer, slot, amount, _, _ in rows.tolist():
        if op <= _FREE:
            sums[layer, slot] = sums.get((layer, slot), 0) + amount
    table: IntArray = np.array([(*owner, size) for owner, size in sums.items() if size], dtype=np.int64)
    return table.reshape(-1, 3)
