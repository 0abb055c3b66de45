"""The ledger: postings of a program on its issue clock, by owner. Peak = the maximum of a running sum.

Comes in: a `Program`. Goes out: `Balance`: the highest moment, who is there, the peak of each phase. Allocated bytes
depend on the order of issue alone (PyTorch lowers them in `free()` on the host), so no clock is needed. Sums run over
pieces; only the piece that holds the peak is looked into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.mesh import IntArray
from simcore.program import Phase, Program
from simcore.tape import Op
from simcore.tile import AMOUNT, LAYER, OP, SLOT, posted_bytes

__all__ = ["Balance", "balance", "running"]


@dataclass(frozen=True, eq=False)
class Balance:
    """The highest moment of a step."""

    peak_bytes: int
    phase: str
    event: str
    layer: str
    microbatch: int
    by_category: dict[str, int]
    by_phase: dict[str, int]
    top: tuple[tuple[str, str, int], ...]
    end_bytes: int


def running(program: Program) -> IntArray:
    """Allocated bytes after each row."""
    return np.cumsum(posted_bytes(program.columns))


def balance(program: Program, num_top: int = 12) -> Balance:
    """Peak, owners at the peak, and the peak of each phase."""
    sums = _Sums(program)
    piece, row = sums.peak()
    held = _held(program, piece, row)
    at = program.pieces[piece]
    in_replay = at.tile is not None and bool(at.tile.replay[row])
    rows = at.tile.rows if at.tile else program.loose
    layer = int(rows[row, LAYER]) + at.layer
    return Balance(
        sums.peak_bytes(piece), (Phase.RECOMPUTE if in_replay else Phase(at.phase)).name.lower(),
        _event(program, piece, row), program.layer_paths[layer] if 0 <= layer < len(program.layer_paths) else "",
        at.microbatch, _by_category(program, held), sums.by_phase(), _owners(program, held, num_top), sums.end())


class _Sums:
    """Bytes at the borders of pieces, and the most inside each."""

    def __init__(self, program: Program) -> None:
        self.pieces = pieces = program.pieces
        self.loose = np.cumsum(posted_bytes(program.loose))
        starts = np.array([p.start for p in pieces if p.tile is None], dtype=np.int64)
        ends = np.array([p.end for p in pieces if p.tile is None], dtype=np.int64)
        before = np.concatenate([[0], self.loose])[starts]
        nets = np.array([0 if p.tile is None else p.tile.net for p in pieces], dtype=np.int64)
        tops = np.array([0 if p.tile is None else p.tile.top for p in pieces], dtype=np.int64)
        mine = np.array([p.tile is None for p in pieces])
        nets[mine] = self.loose[ends - 1] - before
        tops[mine] = (np.maximum.reduceat(self.loose, starts) if len(starts) else 0) - before
        self.after = np.cumsum(nets)
        self.base = self.after - nets
        self.peaks = self.base + tops

    def peak(self) -> tuple[int, int]:
        """(piece, row): a tile's own row, or a loose row's number."""
        number = int(np.argmax(self.peaks))
        piece = self.pieces[number]
        if piece.tile is not None:
            return number, piece.tile.highest
        return number, piece.start + int(np.argmax(self.loose[piece.start:piece.end]))

    def peak_bytes(self, piece: int) -> int:
        return int(self.peaks[piece])

    def end(self) -> int:
        return int(self.after[-1])

    def by_phase(self) -> dict[str, int]:
        """The loss is part of forward too, a replay part of backward too; a phase begins with what was there before."""
        phases = np.array([p.phase for p in self.pieces])
        forward = (phases == Phase.FORWARD) | (phases == Phase.LOSS)
        groups = {"forward": forward, "loss": phases == Phase.LOSS, "backward": phases == Phase.BACKWARD,
                  "optimizer": phases == Phase.OPTIMIZER}
        found = {name: max(int(self.base[np.argmax(inside)]), int(self.peaks[inside].max()))
                 for name, inside in groups.items() if inside.any()}
        replays = [int(self.base[i]) + p.tile.top_of_replay for i, p in enumerate(self.pieces)
                   if p.tile is not None and p.tile.replayed]
        return found | ({"recompute": max(replays)} if replays else {})


def _event(program: Program, piece: int, row: int) -> str:
    """The last hook passed at or before a row, in upstream's spelling."""
    for number in range(piece, -1, -1):
        at = program.pieces[number]
        rows = at.tile.rows if at.tile else program.loose[at.start:at.end]
        if number == piece:
            rows = rows[:row + 1 - at.start]
        marks = np.flatnonzero(rows[:, OP] == Op.MARK)
        if len(marks):
            return program.event(rows[marks[-1]], at.layer)
    return "build"


def _held(program: Program, piece: int, row: int) -> IntArray:
    """Bytes alive after a row by owner: [layer + 1, slot]. Sums stay far below 2**53, so floats count exactly."""
    before = [p for p in program.pieces[:piece] if p.tile is not None]
    at = program.pieces[piece]
    last_loose = next((p.end for p in reversed(program.pieces[:piece]) if p.tile is None), 0)
    tables = [p.tile.nets for p in before if p.tile is not None]
    layers = [p.layer for p in before]
    if at.tile is not None:
        tables.append(at.tile.nets_until(row))
        layers.append(at.layer)
    else:
        last_loose = row + 1
    loose = program.loose[:last_loose]
    tables.append(loose[loose[:, OP] <= Op.FREE][:, [LAYER, SLOT, AMOUNT]])
    every = np.concatenate(tables)
    every[:, 0] += np.repeat([*layers, 0], [len(t) for t in tables])
    num_slots = len(program.tables.slots)
    shape = (len(program.layer_paths) + 2, num_slots)
    keys = (every[:, 0] + 1) * num_slots + every[:, 1]
    sums = np.bincount(keys, weights=every[:, 2], minlength=shape[0] * shape[1])
    return sums.astype(np.int64).reshape(shape)


def _by_category(program: Program, held: IntArray) -> dict[str, int]:
    sums: dict[str, int] = {}
    sizes, owners = held.sum(axis=0), list(program.tables.slots)
    for slot in np.flatnonzero(sizes).tolist():
        category = owners[slot][1]
        sums[category] = sums.get(category, 0) + int(sizes[slot])
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _owners(program: Program, held: IntArray, limit: int) -> tuple[tuple[str, str, int], ...]:
    """(owner, category, bytes), largest first."""
    flat = held.ravel()
    found = np.flatnonzero(flat > 0)
    sizes = flat[found]
    if len(found) > limit:
        found = found[sizes >= np.partition(sizes, -limit)[-limit]]
    named = [(*_owner(program, int(i), held.shape[1]), int(flat[i])) for i in found[:40 * limit]]
    return tuple(sorted(named, key=lambda x: (-x[2], x[0], x[1]))[:limit])


def _owner(program: Program, key: int, num_slots: int) -> tuple[str, str]:
    layer, slot = divmod(key, num_slots)
    return program.owner(layer - 1, slot)
