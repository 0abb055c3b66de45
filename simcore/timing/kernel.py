"""Time of a kernel on an idle device, in integer nanoseconds, and rates of a CPU; collectives, copies: `collective.py`.

The only floats of the engine: rates come from the topology, shares from its efficiency, the result is rounded up once.
Overlap, queues and shared links are not included. Every function is deterministic and monotonic in bytes and FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcore.errors import InputError, Problem
from simcore.hardware.device import Device
from simcore.hardware.efficiency import Efficiency, KernelShare, Overlap
from simcore.hardware.topology import Topology
from simcore.placement.mesh import IntArray
from simcore.timing.kernel_efficiency import gemm_stretch, softmax_stretch, wide_stretch

__all__ = ["DTYPES", "KERNELS", "HostRates", "added_ns", "busy_ns", "compute_ns", "cpu_rate", "exposed_share",
           "host_rates", "on_matrix_units",
           "worked_flops"]

KERNELS: Final = ("gemm", "grouped_gemm", "attention", "mamba_scan", "conv", "norm", "elementwise", "permute", "loss",
                  "embedding", "optimizer", "copy", "attention_flash2", "attention_triton", "elementwise_eager",
                  "attention_efficient")
CPU_SHARE: Final = 0.7
"""Share of a host's datasheet memory bandwidth that an optimizer's operators reach on all its cores: assumed. Copies
between large arrays reach about 0.8 on two sockets; torch's operators process many tensors, some of them small."""
DTYPES: Final = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
_BITS: Final = np.array([{"fp32": 32, "tf32": 32, "fp8": 8, "fp4": 4}.get(name, 16) for name in DTYPES])
_LAST_PRODUCT: Final = KERNELS.index("grouped_gemm")
_POINTWISE: Final = np.array([name in ("norm", "elementwise", "elementwise_eager") for name in KERNELS])
"""Kernels that read what one shortly before them has written, and write what the next one reads."""
_IS_ATTENTION: Final = np.array([name.startswith("attention") for name in KERNELS])


class _KernelTable(NamedTuple):
    ns_per_flop: NDArray[np.float64]  # [kernel, dtype]; NaN where the device has no such format
    ns_per_byte: NDArray[np.float64]  # [kernel]


def compute_ns(device: Device, efficiency: Efficiency, kernel_ids: ArrayLike, flops: ArrayLike, bytes_moved: ArrayLike,
               dtype_ids: ArrayLike) -> NDArray[np.int64]:
    """Time in ns of each kernel on an idle device: its arithmetic plus its memory traffic.

    At least the shortest time of a kernel, but 0 without FLOPs and bytes. `kernel_ids` index `KERNELS`, `dtype_ids`
    index `DTYPES` (the format of the operands); `flops` counts two for a multiply-add; `bytes_moved` is read plus
    written. Raises InputError if the device has no such format.

    [Note: shapes]
    Arithmetic and traffic are added, so a kernel with fewer FLOPs per byte reaches less of the peak. For a product of
    (m, k) and (k, n) in 16 bits bytes over FLOPs are 1/m + 1/n + 1/k, dominated by the smallest of the three, which
    agrees with tables of isolated products. The same holds for attention over short sequences, and for a grouped
    product with few rows an expert. The cost of full tiles, waves and exponentials is in the FLOPs, see `worked_flops`.
    """
    return added_ns(efficiency, *busy_ns(device, efficiency, kernel_ids, flops, bytes_moved, dtype_ids))


def worked_flops(device: Device, kernel_ids: IntArray, flops: IntArray, dtype_ids: IntArray,
                 shapes: IntArray) -> NDArray[np.float64]:
    """FLOPs of each kernel, multiplied by factors for what its shape loses on the device.

    See `kernel_efficiency.py`. `kernel_ids` index `KERNELS`, `dtype_ids` index `DTYPES`. `shapes`:
    of products and of attention as `kernel_shape.py` packs them (0: unknown, factor 1); those of other kernels are
    ignored.
    """
    bits = _BITS[dtype_ids]
    products = np.where(kernel_ids <= _LAST_PRODUCT, shapes, 0)
    attention = np.where(_IS_ATTENTION[kernel_ids], shapes, 0)
    efficient = np.where(kernel_ids == KERNELS.index("attention_efficient"), shapes, 0)
    result: NDArray[np.float64] = flops * gemm_stretch(device, products, flops, bits) * softmax_stretch(
        device, attention, flops, bits, older=kernel_ids != KERNELS.index("attention")) * wide_stretch(efficient)
    return result


def added_ns(efficiency: Efficiency, of_flops: NDArray[np.float64], of_bytes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Time in ns of each kernel: the sum of the two parts that `busy_ns` returns, rounded up.

    At least the shortest time of a kernel, but 0 without FLOPs and bytes (a row that costs only the host). Raises
    OverflowError if their sum reaches 2**62 ns.
    """
    work = of_flops + of_bytes
    if float(work.sum()) >= 2.0**62:
        raise OverflowError("kernels take longer than 64 bits can count")
    shortest = np.where(work > 0, efficiency.shortest.si * 1e9, 0.0)
    result: NDArray[np.int64] = np.ceil(np.maximum(work, shortest)).astype(np.int64)
    return result


def busy_ns(device: Device, efficiency: Efficiency, kernel_ids: ArrayLike, flops: ArrayLike, bytes_moved: ArrayLike,
            dtype_ids: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(ns of each kernel's arithmetic, ns of its memory traffic), neither rounded nor with a minimum.

    Arguments and errors as those of `compute_ns`, which adds them. Pointwise kernels whose tensors fill at most half of
    the device's cache read and write there; what they do not share with their neighbours is not told apart.
    """
    table = _kernel_table(device, efficiency)
    kernels, dtypes = np.asarray(kernel_ids), np.asarray(dtype_ids)
    ns_per_flop = table.ns_per_flop[kernels, dtypes]
    if np.isnan(ns_per_flop).any():
        missing = sorted({DTYPES[i] for i in np.broadcast_to(dtypes, ns_per_flop.shape)[np.isnan(ns_per_flop)]})
        raise InputError(Problem("training.precision", f"{device.name} does not compute in {', '.join(missing)}"))
    moved, ns_per_byte = np.asarray(bytes_moved), table.ns_per_byte[kernels]
    if device.cache is not None:
        near = _POINTWISE[kernels] & (moved <= device.cache.size.si / 2)
        ns_per_byte = np.where(near, 1e9 / device.cache.bandwidth.si, ns_per_byte)
    return np.asarray(flops) * ns_per_flop, moved * ns_per_byte


@lru_cache(maxsize=8)
def _kernel_table(device: Device, efficiency: Efficiency) -> _KernelTable:
    shares = [_share(efficiency, name) for name in KERNELS]
    per_flop = np.array([[_ns_per_flop(device, efficiency, share, dtype) for dtype in DTYPES] for share in shares])
    per_byte = np.array([1e9 / (device.memory_bandwidth.si * share.memory.si) for share in shares])
    return _KernelTable(per_flop, per_byte)


def _share(efficiency: Efficiency, kernel: str) -> KernelShare:
    share: KernelShare = getattr(efficiency.kernels, "copy_" if kernel == "copy" else kernel)
    return share


def on_matrix_units(efficiency: Efficiency, kernel: str) -> bool:
    """True if kernels of class `kernel` (one of `KERNELS`) run on matrix units, False if on vector units.

    The former reach a share of the peak of their format.
    """
    return _share(efficiency, kernel).compute is not None


def _ns_per_flop(device: Device, efficiency: Efficiency, share: KernelShare, dtype: str) -> float:
    if share.compute is None:
        return 1e9 / device.peak.fp32.si
    peak, kept = getattr(device.peak, dtype), getattr(efficiency.low_precision, dtype, None)
    kept_share = device.rate_share * (kept.si if kept else 1.0)
    return 1e9 / (peak.si * share.compute.si * kept_share) if peak else math.nan


def exposed_share(overlap: Overlap, axis: str, overlapped: Sequence[str]) -> float:
    """Share, 0 to 1, of the time of a collective inside a layer that kernels do not hide.

    `axis`: its mesh axis; `overlapped`: mesh axes whose collectives the framework overlaps with kernels, 1 for any
    other axis.
    """
    return overlap.tensor.si if axis in overlapped else 1.0


def cpu_rate(topology: Topology, world_size: int) -> float:
    """Bytes/s at which the CPU cores of one rank read and write host memory.

    A share (`CPU_SHARE`) of the topology's bandwidth, divided evenly among the ranks of a host; `world_size`: ranks of
    the job. Raises InputError if the topology has no `node.host_bandwidth`.
    """
    bandwidth = topology.node.host_bandwidth
    if bandwidth is None:
        raise InputError(Problem("topology", f"{topology.name} does not say node.host_bandwidth, at which a CPU's "
                                 "optimizer runs"))
    return bandwidth.si * CPU_SHARE / min(world_size, topology.gpus_per_host)


class HostRates(NamedTuple):
    """Bytes/s of one rank's work on its host: in memory, reading NVMe, writing NVMe."""

    memory: float
    read: float
    write: float


def host_rates(topology: Topology, world_size: int) -> HostRates:
    """Rates in bytes/s of one rank on its host: memory, and reading and writing drives (0 without drives).

    Ranks of a host share them evenly; `world_size`: ranks of the job. Raises InputError if the topology has no
    `node.host_bandwidth`.
    """
    nvme, ranks = topology.node.nvme, min(world_size, topology.gpus_per_host)
    drives = (nvme.read.si / ranks, nvme.write.si / ranks) if nvme else (0.0, 0.0)
    return HostRates(cpu_rate(topology, world_size), *drives)
