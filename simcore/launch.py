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
from simcore.libraries import Libraries
from simcore.mesh import IntArray

__all__ = ["launch_ns"]

_PERMUTE: Final = KERNELS.index("permute")
_OF_EXPERTS: Final = (KERNELS.index("grouped_gemm"), _PERMUTE)
"""Kernels of the expert part of a layer, whose shapes change: graphs of modules do not hold them."""


def launch_ns(host: Host, is_call: NDArray[np.bool_], kernel_rows: IntArray, kernels: IntArray,
            libraries: Libraries) -> IntArray:
    """Nanoseconds for which the host is busy with each row. `kernels`: the classes of `kernel_rows`.

    In a CUDA graph a share of it is left; the expert part of a layer is in none, unless the whole step is.
    """
    each = np.zeros(len(is_call), dtype=np.float64)
    each[kernel_rows] = (host.module if libraries.module_calls else host.operator).si
    if libraries.module_calls:
        each[kernel_rows[kernels == _PERMUTE]] = host.permutation.si
    if libraries.graphs != "none":
        each[kernel_rows[~np.isin(kernels, _OF_EXPERTS) | (libraries.graphs == "step")]] *= host.graphed.si
    each[is_call] = host.collective.si * (host.graphed.si if libraries.graphs == "step" else 1.0)
    result: IntArray = (each * 1e9).astype(np.int64)
    return result
