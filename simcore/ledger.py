"""The ledger: postings of a program on its issue clock, by owner. Peak = the maximum of a running sum.

Comes in: a `Program`. Goes out: `Balance`, the highest moment, who is there, and the peak of each phase. Allocated bytes
depend on the order of issue alone (PyTorch lowers them in `free()` on the host), so no clock is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.mesh import IntArray
from simcore.program import AMOUNT, LAYER, OP, SLOT, Phase, Program
from simcore.tape import Op

__all__ = ["Balance", "balance", "by_category", "owners", "running"]

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
    phases = {name: _phase_peak(program, total, codes) for name, codes in _PHASES.items()}
    return Balance(
        int(total[row]), row, _phase_name(int(program.phase[row])), _event(program, row), _layer(program, row),
        int(program.microbatch[row]), by_category(program, row),
        {name: peak for name, peak in phases.items() if peak >= 0}, owners(program, row, num_top), int(total[-1]))


def _phase_peak(program: Program, total: IntArray, codes: tuple[Phase, ...]) -> int:
    inside = np.isin(program.phase, [int(c) for c in codes])
    if not inside.any():
        return -1
    first = int(np.argmax(inside))
    before = int(total[first - 1]) if first else 0
    return max(before if codes[0] != Phase.RECOMPUTE else 0, int(total[inside].max()))


def _phase_name(code: int) -> str:
    return Phase(code).name.lower()


def _event(program: Program, row: int) -> str:
    """The last hook passed at or before a row, in upstream's spelling."""
    marks = np.flatnonzero(program.columns[:row + 1, OP] == Op.MARK)
    if not len(marks):
        return "build"
    mark = int(marks[-1])
    label = list(program.tables.labels)[int(program.columns[mark, SLOT])]
    return label if not label.startswith("bwd:recompute") else f"{label}:{_layer(program, mark)}"


def _layer(program: Program, row: int) -> str:
    layer = int(program.columns[row, LAYER])
    return program.layer_paths[layer] if 0 <= layer < len(program.layer_paths) else ""


def by_category(program: Program, row: int) -> dict[str, int]:
    """Bytes alive after a row, by category, largest first."""
    columns = program.columns[:row + 1]
    posted = columns[columns[:, OP] <= Op.FREE]
    categories = [category for _, category in program.tables.slots]
    names = sorted(set(categories))
    number = np.array([names.index(c) for c in categories])
    sums = np.zeros(len(names), dtype=np.int64)
    np.add.at(sums, number[posted[:, SLOT]], posted[:, AMOUNT])
    found = [(int(b), name) for name, b in zip(names, sums, strict=True) if b]
    return {name: b for b, name in sorted(found, key=lambda x: (-x[0], x[1]))}


def owners(program: Program, row: int, limit: int) -> tuple[tuple[str, str, int], ...]:
    """(owner, category, bytes) alive after a row, largest first."""
    columns = program.columns[:row + 1]
    posted = columns[columns[:, OP] <= Op.FREE]
    keys = posted[:, LAYER] * len(program.tables.slots) + posted[:, SLOT]
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, inverse, posted[:, AMOUNT])
    best = np.argsort(-sums, kind="stable")[:limit * 4]
    named = [(*_owner(program, int(unique[i])), int(sums[i])) for i in best if sums[i] > 0]
    return tuple(sorted(named, key=lambda x: (-x[2], x[0], x[1]))[:limit])


def _owner(program: Program, key: int) -> tuple[str, str]:
    layer, slot = divmod(key, len(program.tables.slots))
    return program.owner(layer, slot)
