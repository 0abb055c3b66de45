"""Kernels of one rank's program with the time of each, alone on a device and less what others hide of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from simcore.hardware.efficiency import Efficiency
from simcore.hardware.topology import Topology
from simcore.placement.framework import Framework
from simcore.placement.libraries import KernelLibraries
from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, AUX, OP, SLOT, STREAM
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op, Stream
from simcore.timing.breakdown import Kernels
from simcore.timing.exchanges import hidden_beside, shown
from simcore.timing.host_launch import graphed_rows
from simcore.timing.kernel import DTYPES, KERNELS, added_ns, busy_ns, worked_flops
from simcore.timing.routes import Routes

__all__ = ["alone_ns", "in_line_ns", "kernels_of", "shown_kernels"]

_IN_LINE = ("all_gather", "reduce_scatter", "all_reduce")
_DTYPE_ID = {name: DTYPES.index(name) for name in ("fp32", "bf16", "fp16", "fp8", "fp4")}


def kernels_of(program: Program, topology: Topology, framework: Framework) -> Kernels:
    """Kernels among the program's distinct rows, and the time of each on an idle device."""
    at = np.flatnonzero(program.distinct[:, OP] == Op.COMPUTE)
    rows = program.distinct[at]
    kinds, dtypes = _kinds(rows[:, SLOT], framework.compute_dtype)
    kinds[kinds == Kernel.ATTENTION] = KERNELS.index(framework.libraries.attention)
    if framework.libraries.eager:
        kinds[kinds == Kernel.ELEMENTWISE] = KERNELS.index("elementwise_eager")
    flops, moved = rows[:, AMOUNT], rows[:, AUX]
    if framework.libraries.fused < 1.0:
        fusible = (rows[:, SLOT] == Kernel.ELEMENTWISE) & (shapes_in(rows[:, STREAM]) == 0)
        moved = np.where(fusible, moved * framework.libraries.fused, moved).astype(np.int64)
    worked = worked_flops(topology.device, kinds, flops, dtypes, shapes_in(rows[:, STREAM]))
    busy = busy_ns(topology.device, topology.efficiency, kinds, worked, moved, dtypes)
    return Kernels(at, kinds, dtypes, added_ns(topology.efficiency, *busy), flops, moved, *busy)


def shown_kernels(program: Program, alone: Callable[[int, int], int], routes: Routes, framework: Framework,
                  ) -> tuple[Kernels, NDArray[np.float64] | None]:
    """(kernels of the program, less what others hide of each; share of each distinct row that they hide, or None).

    `alone`: ns of a call by its communicator and payload, see `alone_ns`.
    """
    kernels, topology = kernels_of(program, routes.topology, framework), routes.topology
    ns = np.zeros(len(program.distinct), dtype=np.int64)
    ns[kernels.rows] = kernels.ns
    hidden = hidden_beside(program, ns, alone, topology.efficiency.overlap, framework.libraries)
    if hidden is None:
        return kernels, None
    left = 1.0 - hidden[kernels.rows]
    return kernels._replace(ns=shown(kernels.ns, hidden, kernels.rows), compute_ns=kernels.compute_ns * left,
                            memory_ns=kernels.memory_ns * left), hidden


def alone_ns(program: Program, routes: Routes) -> Callable[[int, int], int]:
    """Function that gives ns of a call by the index of its communicator and its payload."""
    comms = list(program.tables.comms)

    return cache(lambda comm, payload: routes.of(*comms[comm][:2]).ns(payload))


def in_line_ns(program: Program, efficiency: Efficiency, libraries: KernelLibraries) -> IntArray | None:
    """Ns that the collective of each distinct row takes more in line with kernels than alone; None for nothing.

    Of torch's all-gathers, reduce-scatters and all-reduces on the compute stream, but for those in CUDA graphs and
    those that user buffers overlap: `Efficiency.in_line`.
    """
    rows, comms = program.distinct, list(program.tables.comms)
    waits = np.array([name in _IN_LINE and axis not in libraries.overlapped for name, axis, _ in comms], dtype=np.bool_)
    found = np.zeros(len(rows), dtype=np.int64)
    at = np.flatnonzero((rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE))
    at = at[waits[rows[at, SLOT]]]
    if libraries.graphs:
        at = at[~graphed_rows(rows[at], libraries.graphs)]
    found[at] = int(efficiency.in_line.si * 1e9)
    return found if len(at) else None


def _kinds(slots: IntArray, compute: str) -> tuple[IntArray, IntArray]:
    """Class and format of kernels: those of 8-bit and of 4-bit operands have separate codes."""
    formats = np.array([_DTYPE_ID[dtype] for dtype in (compute, "fp8", "fp4")])
    slots = np.where(slots == int(Kernel.GRAD_GEMM), int(Kernel.GEMM), slots)
    narrow = np.searchsorted([Kernel.FP8_GEMM, Kernel.FP4_GEMM], slots, side="right")
    return slots - np.array([0, Kernel.FP8_GEMM, Kernel.FP4_GEMM])[narrow], formats[narrow]
