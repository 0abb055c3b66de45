"""The ledger: postings of a program on its issue clock, by owner. Peak = the maximum of a running sum.

Comes in: a `Program`. Goes out: `Balance`: the highest moment, who is there, the peak of each phase. Allocated bytes
depend on the order of issue alone (PyTorch lowers them in `free()` on the host), so no clock is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.mesh import IntArray
from simcore.program import AMOUNT, LAYER, OP, SLOT, Phase, Program
from simcore.tape import Op

__all__ = ["Balance", "balance", "by_category", "event_at", "running"]

_PHASES = {"forward": (Phase.FORWARD, Phase.LOSS), "loss": (Phase.LOSS,), "backward": (Phase.BACKWARD, Phase.RECOMPUTE),
           "recompute": (Phase.RECOMPUTE,), "optimizer": (Phase.OPTIMIZER,)}


@dataclass(frozen=True, eq=False)
class Balance:
    """The highest moment of a step. `row` is the posting that reached it."""

    peak_bytes: int
    row: int
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
    columns = program.columns
    posted = np.where(columns[:, OP] <= Op.FREE, columns[:, AMOUNT], 0)
    return np.cumsum(posted)


def balance(program: Program, num_top: int = 12) -> Balance:
    """Peak, owners at the peak, and the peak of each phase."""
    total = running(program)
    row = int(np.argmax(total))
    peaks = ((name, _phase_peak(program, total, codes)) for name, codes in _PHASES.items())
    held = _held(program, row)
    return Balance(
        int(total[row]), row, Phase(int(program.phase[row])).name.lower(), event_at(program, row), _layer(program, row),
        int(program.microbatch[row]), _by_category(program, held), {name: peak for name, peak in peaks if peak >= 0},
        _owners(program, held, num_top), int(total[-1]))


def _phase_peak(program: Program, total: IntArray, codes: tuple[Phase, ...]) -> int:
    inside = program.phase == codes[0]
    for code in codes[1:]:
        inside |= program.phase == code
    first = int(np.argmax(inside))
    if not inside[first]:
        return -1
    before = int(total[first - 1]) if first and codes[0] != Phase.RECOMPUTE else 0
    return max(before, int(total[inside].max()))


def event_at(program: Program, row: int) -> str:
    """The last hook passed at or before a row, in upstream's spelling."""
    marks = np.flatnonzero(program.columns[:row + 1, OP] == Op.MARK)
    return program.event(int(marks[-1])) if len(marks) else "build"


def _layer(program: Program, row: int) -> str:
    layer = int(program.columns[row, LAYER])
    return program.layer_paths[layer] if 0 <= layer < len(program.layer_paths) else ""


def _held(program: Program, row: int) -> IntArray:
    """Bytes alive after a row by owner: [layer + 1, slot]. Sums stay far below 2**53, so floats count exactly."""
    columns = program.columns[:row + 1]
    posted = columns[columns[:, OP] <= Op.FREE]
    num_slots = len(program.tables.slots)
    keys = (posted[:, LAYER] + 1) * num_slots + posted[:, SLOT]
    shape = (len(program.layer_paths) + 2, num_slots)
    sums = np.bincount(keys, weights=posted[:, AMOUNT], minlength=shape[0] * shape[1])
    return sums.astype(np.int64).reshape(shape)


def by_category(program: Program, row: int) -> dict[str, int]:
    """Bytes alive after a row, by category, largest first."""
    return _by_category(program, _held(program, row))


def _by_category(program: Program, held: IntArray) -> dict[str, int]:
    sums: dict[str, int] = {}
    for (_, category), size in zip(program.tables.slots, held.sum(axis=0).tolist(), strict=True):
        if size:
            sums[category] = sums.get(category, 0) + size
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _owners(program: Program, held: IntArray, limit: int) -> tuple[tuple[str, str, int], ...]:
    """(owner, category, bytes), largest first."""
    flat = held.ravel()
    least = np.partition(flat, -limit)[-limit] if len(flat) > limit else 1
    found = np.flatnonzero(flat >= max(int(least), 1))
    named = [(*_owner(program, int(i), held.shape[1]), int(flat[i])) for i in found[:40 * limit]]
    return tuple(sorted(named, key=lambda x: (-x[2], x[0], x[1]))[:limit])


def _owner(program: Program, key: int, num_slots: int) -> tuple[str, str]:
    layer, slot = divmod(key, num_slots)
    return program.owner(layer - 1, slot)
