"""Host time of the rows that it issues, the second clock of a step.

Kernels smaller than the call that launches them leave the device waiting, so small models and small batches run at the
pace of Python. Host times are calibrated, see `topologies/efficiency`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from simcore.timing.kernel import KERNELS, HostRates

__all__ = ["graphed_rows", "launch_ns"]

_PERMUTE: Final = KERNELS.index("permute")
_CONV, _COPY = KERNELS.index("conv"), KERNELS.index("copy")
_GROUPED: Final = KERNELS.index("grouped_gemm")
_SEND, _RECEIVE = int(Stream.SEND), int(Stream.RECEIVE)
_COUNTED: Final = tuple(KERNELS.index(name) for name in
                        ("elementwise", "elementwise_eager", "mamba_scan", "copy", "norm"))
"""Kernel classes whose shape is a number of operators."""
_IS_COUNTED: Final = np.array([number in _COUNTED for number in range(len(KERNELS))])
_MODULE_OF: Final = {module.name.lower(): int(module) for module in Module}


def launch_ns(host: Host, rows: IntArray, kernel_rows: IntArray, kernels: IntArray, libraries: KernelLibraries,
              bytes_per_s: HostRates, rings: Sequence[int] = ()) -> IntArray:
    """Host time in ns that the issue of each row takes, in the order of `rows`.

    `kernel_rows`: indices of the rows that are kernels; `kernels`: their classes, as indices in `kernel.KERNELS`. In a
    CUDA graph (`libraries.graphs`) only a share of the time remains. `bytes_per_s`: rates of the host's memory and
    drives, for work that the host does itself. `rings`: communicators of messages around a ring, which are modules'.
    """
    each = np.zeros(len(rows), dtype=np.float64)
    each[kernel_rows] = _kernel_s(host, rows[kernel_rows], kernels, libraries)
    calls = rows[:, OP] == Op.COLLECTIVE
    each[calls] = _call_s(host, rows[calls, STREAM], libraries)
    if rings and libraries.module_calls:
        each[calls & np.isin(rows[:, SLOT], rings)] = host.module.si
    each[rows[:, OP] == Op.COPY] = host.operator.si
    if libraries.graphs:
        each[graphed_rows(rows, libraries.graphs)] *= host.graphed.si
    updates = rows[:, OP] == Op.HOST
    each[updates] = rows[updates, AUX] / np.array(bytes_per_s)[rows[updates, SLOT]]
    result: IntArray = (each * 1e9).astype(np.int64)
    return result


def _kernel_s(host: Host, rows: IntArray, kernels: IntArray, libraries: KernelLibraries) -> NDArray[np.float64]:
    """Host seconds of each kernel's row: a module, an operator of torch, or the row's number of operators.

    A convolution takes no time: it is called and was timed with the scan (`operators/shared/mamba_scan_cost.py`).
    Products of a group that are launched one by one (`KernelLibraries.launches_each`) take an operator each, except the
    first. This is assumed, because TransformerEngine runs a C++ loop over them, and Python for each weight and
    gradient. Deterministic algorithms fill the memory that a module allocates (`KernelLibraries.fills`), but not that
    of torch's own operators; memory traffic of the filling kernels is not counted.
    """
    filling = host.filling.si if libraries.fills else 0.0
    seconds = np.full(len(rows), host.module.si * (1.0 + filling) if libraries.module_calls else host.operator.si)
    if libraries.module_calls:
        permutes = kernels == _PERMUTE
        seconds[permutes] = host.permutation.si + shapes_in(rows[permutes, STREAM]) * host.operator.si
        if libraries.launches_each:
            grouped = kernels == _GROUPED
            seconds[grouped] += np.maximum(groups_in(rows[grouped, STREAM]) - 1, 0) * host.operator.si
    for kernel, module in libraries.te_calls:
        seconds[(kernels == KERNELS.index(kernel)) & (module_of(rows[:,
                                                                     STREAM]) == _MODULE_OF[module])] = host.module.si
    seconds[kernels == _COPY] = host.operator.si
    seconds[kernels == _CONV] = 0.0
    some = _IS_COUNTED[kernels] if libraries.module_calls else _IS_COUNTED[kernels] | (kernels == _PERMUTE)
    operators = shapes_in(rows[some, STREAM])
    seconds[some] = np.where(operators > 0, operators * host.operator.si, seconds[some])
    return seconds


def _call_s(host: Host, streams: IntArray, libraries: KernelLibraries) -> NDArray[np.float64]:
    """Host seconds of each collective. A message for which the host stops costs a module's call, plus its waiting.

    This is assumed: no timing of `batch_isend_irecv` is known. A stage sends in the batch in which it receives
    (core 0.16.1 `p2p_communication.py`, send_forward_recv_backward and its like), so sending adds no time;
    the few batches of the first and the last passes that only send are ignored. A message around a ring, of the same
    calls, takes as long.
    """
    seconds = np.full(len(streams), host.collective.si)
    if libraries.waits_for_messages:
        seconds[streams == _RECEIVE] = host.module.si
        seconds[streams == _SEND] = 0.0
    return seconds


def graphed_rows(rows: IntArray, graphs: tuple[str, ...]) -> NDArray[np.bool_]:
    """True for rows inside a CUDA graph: those of its modules, or all but the optimizer's kernels.

    `rows`: distinct rows of a program; `graphs`: see `KernelLibraries`.
    """
    is_kernel = rows[:, OP] == Op.COMPUTE
    inside: NDArray[np.bool_]
    if FULL_ITERATION in graphs:
        inside = ~(is_kernel & (rows[:, SLOT] == Kernel.OPTIMIZER))
        return inside
    in_line = (rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE)
    module = np.where(is_kernel, module_of(rows[:, STREAM]), np.where(in_line, rows[:, AUX], Module.NONE))
    inside = np.isin(module, [_MODULE_OF[name] for name in graphs])
    return inside
