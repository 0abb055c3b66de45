"""How long the host is busy with what it issues: the other clock of a step.

Kernels smaller than the call that launches them leave the device waiting, so small models and small batches run at the
pace of Python. What it costs is calibrated, see `topologies/efficiency`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.cost import KERNELS
from simcore.efficiency import Host
from simcore.libraries import FULL_ITERATION, Libraries
from simcore.mesh import IntArray
from simcore.product import groups_in, module_of, shapes_in
from simcore.rows import Module
from simcore.tape import Kernel, Op, Stream
from simcore.tile import AUX, OP, SLOT, STREAM

__all__ = ["launch_ns"]

_PERMUTE: Final = KERNELS.index("permute")
_GROUPED: Final = KERNELS.index("grouped_gemm")
_OF_OPERATORS: Final = [KERNELS.index(name) for name in ("elementwise", "mamba_scan")]
_MODULE_OF: Final = {module.name.lower(): int(module) for module in Module}


def launch_ns(host: Host, rows: IntArray, kernel_rows: IntArray, kernels: IntArray, libraries: Libraries,
              bytes_per_s: tuple[float, float, float]) -> IntArray:
    """Nanoseconds for which the host is busy with each row. `kernels`: the classes of `kernel_rows`.

    In a CUDA graph a share of it is left. Some rows stand for a number of torch's own operators, or of Triton's
    kernels. A group's products that are launched one by one (`Libraries.launches_each`) cost an operator each but for
    the first: assumed, for what TransformerEngine does for each is C++ in one loop, and Python for its weight and its
    gradient.
    `bytes_per_s`: at which the host reads and writes its memory, reads drives and writes them: `host_rates`.
    """
    each = np.zeros(len(rows), dtype=np.float64)
    each[kernel_rows] = (host.module if libraries.module_calls else host.operator).si
    if libraries.module_calls:
        each[kernel_rows[kernels == _PERMUTE]] = host.permutation.si
        if libraries.launches_each:
            grouped = kernel_rows[kernels == _GROUPED]
            each[grouped] += np.maximum(groups_in(rows[grouped, STREAM]) - 1, 0) * host.operator.si
    of_operators = kernel_rows[np.isin(kernels, _OF_OPERATORS)]
    operators = shapes_in(rows[of_operators, STREAM])
    each[of_operators] = np.where(operators > 0, operators * host.operator.si, each[of_operators])
    each[rows[:, OP] == Op.COLLECTIVE] = host.collective.si
    each[rows[:, OP] == Op.COPY] = host.operator.si
    if libraries.graphs:
        each[_graphed(rows, libraries.graphs)] *= host.graphed.si
    updates = rows[:, OP] == Op.HOST
    each[updates] = rows[updates, AUX] / np.array(bytes_per_s)[rows[updates, SLOT]]
    result: IntArray = (each * 1e9).astype(np.int64)
    return result


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
