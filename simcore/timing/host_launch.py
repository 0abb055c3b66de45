"""How long the host is busy with what it issues: the other clock of a step.

Kernels smaller than the call that launches them leave the device waiting, so small models and small batches run at the
pace of Python. What it costs is calibrated, see `topologies/efficiency`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.hardware.efficiency import Host
from simcore.placement.libraries import FULL_ITERATION, KernelLibraries
from simcore.placement.mesh import IntArray
from simcore.program.tile import AUX, OP, SLOT, STREAM
from simcore.recording.kernel_shape import groups_in, module_of, shapes_in
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Op, Stream
from simcore.timing.kernel import KERNELS

__all__ = ["launch_ns"]

_PERMUTE: Final = KERNELS.index("permute")
_CONV, _COPY = KERNELS.index("conv"), KERNELS.index("copy")
_GROUPED: Final = KERNELS.index("grouped_gemm")
_SEND, _RECEIVE = int(Stream.SEND), int(Stream.RECEIVE)
_COUNTED: Final = tuple(KERNELS.index(name) for name in
                        ("elementwise", "elementwise_eager", "mamba_scan", "copy", "norm"))
"""Whose shape is a number of operators."""
_MODULE_OF: Final = {module.name.lower(): int(module) for module in Module}


def launch_ns(host: Host, rows: IntArray, kernel_rows: IntArray, kernels: IntArray, libraries: KernelLibraries,
              bytes_per_s: tuple[float, float, float]) -> IntArray:
    """Nanoseconds for which the host is busy with each row. `kernels`: the classes of `kernel_rows`.

    In a CUDA graph a share of it is left. `bytes_per_s`: at which the host reads and writes its memory, reads drives
    and writes them: `host_rates`.
    """
    each = np.zeros(len(rows), dtype=np.float64)
    each[kernel_rows] = _kernel_s(host, rows[kernel_rows], kernels, libraries)
    calls = rows[:, OP] == Op.COLLECTIVE
    each[calls] = _call_s(host, rows[calls, STREAM], libraries)
    each[rows[:, OP] == Op.COPY] = host.operator.si
    if libraries.graphs:
        each[_graphed(rows, libraries.graphs)] *= host.graphed.si
    updates = rows[:, OP] == Op.HOST
    each[updates] = rows[updates, AUX] / np.array(bytes_per_s)[rows[updates, SLOT]]
    result: IntArray = (each * 1e9).astype(np.int64)
    return result


def _kernel_s(host: Host, rows: IntArray, kernels: IntArray, libraries: KernelLibraries) -> NDArray[np.float64]:
    """Seconds of each kernel's row: a module, an operator of torch, or as many operators as the row stands for.

    A convolution costs nothing: what calls the scan calls it, and was timed with it (`operators/ssd.py`).
    A group's products that are launched one by one (`KernelLibraries.launches_each`) cost an operator each but for the
    first: assumed, for what TransformerEngine does for each is C++ in one loop, and Python for its weight and its
    gradient. Deterministic algorithms fill what a module allocates (`KernelLibraries.fills`); torch's own operators
    fill nothing, and that the kernels which fill write memory too is not counted.
    """
    filling = host.filling.si if libraries.fills else 0.0
    found = np.full(len(rows), host.module.si * (1.0 + filling) if libraries.module_calls else host.operator.si)
    if libraries.module_calls:
        permutes = kernels == _PERMUTE
        found[permutes] = host.permutation.si + shapes_in(rows[permutes, STREAM]) * host.operator.si
        if libraries.launches_each:
            grouped = kernels == _GROUPED
            found[grouped] += np.maximum(groups_in(rows[grouped, STREAM]) - 1, 0) * host.operator.si
    for kernel, module in libraries.te_calls:
        found[(kernels == KERNELS.index(kernel)) & (module_of(rows[:, STREAM]) == _MODULE_OF[module])] = host.module.si
    found[kernels == _COPY] = host.operator.si
    found[kernels == _CONV] = 0.0
    some = np.isin(kernels, _COUNTED if libraries.module_calls else (*_COUNTED, _PERMUTE))
    operators = shapes_in(rows[some, STREAM])
    found[some] = np.where(operators > 0, operators * host.operator.si, found[some])
    return found


def _call_s(host: Host, streams: IntArray, libraries: KernelLibraries) -> NDArray[np.float64]:
    """Seconds of each collective. A message that the host stops for is a module's call, what it waits for besides.

    The last is assumed: nobody has timed `batch_isend_irecv` alone. A stage sends in the batch in which it receives
    (core 0.16.1 `p2p_communication.py`, send_forward_recv_backward and its like), so that sending costs nothing more;
    the few batches of the first and the last passes that only send are left out.
    """
    found = np.full(len(streams), host.collective.si)
    if libraries.waits_for_messages:
        found[streams == _RECEIVE] = host.module.si
        found[streams == _SEND] = 0.0
    return found


def _graphed(rows: IntArray, graphs: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which rows lie in a graph: those of its modules, or all but the optimizer's kernels."""
    is_kernel = rows[:, OP] == Op.COMPUTE
    held: NDArray[np.bool_]
    if FULL_ITERATION in graphs:
        held = ~(is_kernel & (rows[:, SLOT] == Kernel.OPTIMIZER))
        return held
    in_line = (rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE)
    module = np.where(is_kernel, module_of(rows[:, STREAM]), np.where(in_line, rows[:, AUX], Module.NONE))
    held = np.isin(module, [_MODULE_OF[name] for name in graphs])
    return held
