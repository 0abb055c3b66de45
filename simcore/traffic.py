"""Traffic of one step of one rank: collectives of a program, counted and weighed.

A program writes out a few microbatches (`schedule.lowered_microbatches`); the steady ones stand for all that repeat
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simcore.collective import wire_factor
from simcore.mesh import IntArray, Mesh
from simcore.outline import Outline, Phase
from simcore.program import Program
from simcore.report import TrafficRow

__all__ = ["traffic"]


def traffic(program: Program, mesh: Mesh, steady: range, repeats: int) -> tuple[TrafficRow, ...]:
    """Rows by collective, axis, phase and dtype. `repeats`: how often the microbatches of `steady` happen."""
    counted = _counted(program.outline, steady, repeats)
    if not counted.keys:
        return ()
    comms = list(program.tables.comms)
    groups = [mesh.axis(axis).size for _, axis, _ in comms]
    factors = np.array([wire_factor(kind, size) for (kind, _, _), size in zip(comms, groups, strict=True)])
    sizes = program.payloads()[counted.numbers]
    wires = np.rint(sizes * factors[counted.comms]).astype(np.int64)  # each call rounded, halves to even
    calls, payloads, sent = (np.add.reduceat(each * counted.times, counted.starts).tolist()
                             for each in (np.ones_like(sizes), sizes, wires))
    rows = [_row(*comms[key // len(Phase)], key % len(Phase), groups[key // len(Phase)], of, payload, wire)
            for key, of, payload, wire in zip(counted.keys, calls, payloads, sent, strict=True)
            if groups[key // len(Phase)] > 1]
    return tuple(sorted(rows, key=lambda r: (r.collective, r.axis, r.phase, r.dtype)))


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """Calls of a step that are the same, counted: which of `Program.payloads`, how often, of which communication.

    `keys`: communication row and phase; those with one key stand together from `starts` on.
    """

    keys: tuple[int, ...]
    starts: IntArray
    numbers: IntArray
    times: IntArray
    comms: IntArray


@lru_cache(maxsize=64)
def _counted(outline: Outline, steady: range, repeats: int) -> _Counted:
    """The loss is part of forward."""
    loose, tiles = outline.calls, outline.tile_calls
    numbers = np.concatenate([np.arange(len(loose)), len(loose) + tiles[:, 1]])
    comm_of, phase, microbatch = np.concatenate([loose, tiles])[:, [0, 2, 3]].T
    keys = comm_of * len(Phase) + np.where(phase == Phase.LOSS, int(Phase.FORWARD), phase)
    (keys, numbers), which = np.unique(np.stack([keys, numbers]), axis=1, return_inverse=True)
    often = np.where((microbatch >= steady.start) & (microbatch < steady.stop), repeats, 1)
    times = np.bincount(which.ravel(), weights=often, minlength=len(keys)).astype(np.int64)
    distinct, starts = np.unique(keys, return_index=True)
    return _Counted(tuple(distinct.tolist()), starts, numbers, times, keys // len(Phase))


def _row(collective: str, axis: str, dtype: str, phase: int, group: int, calls: int, payload: int,
         wire: int) -> TrafficRow:
    algorithm = {"all_to_all": "pairwise", "send_recv": "direct"}.get(collective, "ring")
    return TrafficRow(collective=collective, axis=axis, group_size=group, phase=Phase(phase).name.lower(), dtype=dtype,
                      calls=calls, payload_bytes=payload, wire_bytes=wire, algorithm=algorithm)
