"""Traffic of one step of one rank: collectives of a program, counted and weighed.

A program writes out a few microbatches (`schedule.lowered_microbatches`); the steady one stands for all that repeat it.
"""

from __future__ import annotations

import numpy as np

from simcore.cost import wire_bytes
from simcore.mesh import IntArray, Mesh
from simcore.outline import Phase
from simcore.program import Program
from simcore.report import TrafficRow

__all__ = ["traffic"]


def traffic(program: Program, mesh: Mesh, steady: int, repeats: int) -> tuple[TrafficRow, ...]:
    """Rows by collective, axis, phase and dtype. `repeats`: how often microbatch `steady` happens."""
    comm_of, payload, phase_of, microbatch = program.calls().T
    comms = list(program.tables.comms)
    keys = comm_of * len(Phase) + np.where(phase_of == Phase.LOSS, int(Phase.FORWARD), phase_of)
    weight = np.where(microbatch == steady, repeats, 1)
    rows = []
    for key in np.unique(keys):
        comm, phase = divmod(int(key), len(Phase))
        collective, axis, dtype = comms[comm]
        group = mesh.axis(axis).size
        if group < 2:
            continue
        mine = keys == key
        rows.append(_row(payload[mine], weight[mine], collective, axis, group, dtype, phase))
    return tuple(sorted(rows, key=lambda r: (r.collective, r.axis, r.phase, r.dtype)))


def _row(payload: IntArray, weight: IntArray, collective: str, axis: str, group: int, dtype: str,
         phase: int) -> TrafficRow:
    sizes, first = np.unique(payload, return_inverse=True)
    counts = np.bincount(first, weights=weight).astype(np.int64)
    wires = [wire_bytes(collective, int(size), group) for size in sizes]
    algorithm = {"all_to_all": "pairwise", "send_recv": "direct"}.get(collective, "ring")
    return TrafficRow(
        collective=collective, axis=axis, group_size=group, phase=Phase(phase).name.lower(), dtype=dtype,
        calls=int(counts.sum()), payload_bytes=int((sizes * counts).sum()),
        wire_bytes=sum(w * int(n) for w, n in zip(wires, counts, strict=True)), algorithm=algorithm)
