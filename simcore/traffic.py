"""Traffic of one step of one rank: collectives of a program, counted and weighed.

A program writes out a few microbatches (`schedule.lowered_microbatches`); the steady ones stand for all that repeat
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcore.cost import wire_bytes
from simcore.mesh import Mesh
from simcore.outline import Phase
from simcore.program import Program
from simcore.report import TrafficRow

__all__ = ["traffic"]


def traffic(program: Program, mesh: Mesh, steady: range, repeats: int) -> tuple[TrafficRow, ...]:
    """Rows by collective, axis, phase and dtype. `repeats`: how often the microbatches of `steady` happen."""
    comm_of, payload, phase_of, microbatch = program.calls().T
    keys = comm_of * len(Phase) + np.where(phase_of == Phase.LOSS, int(Phase.FORWARD), phase_of)
    sizes, which = np.unique(keys << _SIZE_BITS | payload, return_inverse=True)
    counts = np.bincount(which, weights=np.where((microbatch >= steady.start) & (microbatch < steady.stop), repeats, 1))
    found: dict[int, list[tuple[int, int]]] = {}
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        found.setdefault(size >> _SIZE_BITS, []).append((size & (1 << _SIZE_BITS) - 1, int(count)))
    comms = list(program.tables.comms)
    rows = [_row(calls, *comms[key // len(Phase)], key % len(Phase), mesh) for key, calls in found.items()]
    return tuple(sorted((r for r in rows if r.group_size > 1), key=lambda r: (r.collective, r.axis, r.phase, r.dtype)))


_SIZE_BITS = 48
"""Room for a payload beside its key: 256 TiB."""


def _row(calls: Sequence[tuple[int, int]], collective: str, axis: str, dtype: str, phase: int,
         mesh: Mesh) -> TrafficRow:
    """`calls`: (payload bytes, how often)."""
    group = mesh.axis(axis).size
    algorithm = {"all_to_all": "pairwise", "send_recv": "direct"}.get(collective, "ring")
    return TrafficRow(
        collective=collective, axis=axis, group_size=group, phase=Phase(phase).name.lower(), dtype=dtype,
        calls=sum(count for _, count in calls), payload_bytes=sum(size * count for size, count in calls),
        wire_bytes=sum(wire_bytes(collective, size, group) * count for size, count in calls), algorithm=algorithm)
