"""How long one thing takes alone, in whole nanoseconds: a kernel, a collective, a copy to the host.

The only floats of the engine: rates come from the topology, shares from its efficiency, the result is rounded up once.
Overlap, queues and shared links are not here. Every function is deterministic and never falls when bytes or FLOPs grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcore.device import Device
from simcore.efficiency import Efficiency, KernelShare, Overlap
from simcore.errors import InputError, Problem
from simcore.quantity import Rate
from simcore.topology import Fabric, HostLink, Link

__all__ = ["COLLECTIVES", "DTYPES", "KERNELS", "collective_ns", "compute_ns", "copy_ns", "exposed_share", "wire_bytes",
           "wire_factor"]

KERNELS: Final = ("gemm", "grouped_gemm", "attention", "mamba_scan", "conv", "norm", "elementwise", "permute", "loss",
                  "embedding", "optimizer", "copy", "attention_flash2")
DTYPES: Final = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "gather",
                      "send_recv")

# Whose bus bandwidth a collective without a measurement of its own takes.
_MEASURED_AS: Final = {"broadcast": "all_gather", "reduce": "reduce_scatter", "gather": "send_recv"}

# NCCL's latency grows by a hop for each rank up to the 8 that were measured; beyond, trees and in-switch reduction
# take over from the ring, and it is held (assumed).
_MAX_HOPS: Final = 7


class _KernelTable(NamedTuple):
    ns_per_flop: NDArray[np.float64]  # [kernel, dtype]; NaN where the device has no such format
    ns_per_byte: NDArray[np.float64]  # [kernel]
    shortest_ns: float


def compute_ns(device: Device, efficiency: Efficiency, kernel_ids: ArrayLike, flops: ArrayLike, bytes_moved: ArrayLike,
               dtype_ids: ArrayLike) -> NDArray[np.int64]:
    """Nanoseconds of each kernel: its arithmetic and its memory traffic, at least the shortest that a kernel takes.

    `kernel_ids` index `KERNELS`, `dtype_ids` index `DTYPES` (the format of the operands); `flops` counts two for a
    multiply-add; `bytes_moved` is read plus written. InputError when the device has no such format.

    [Note: shapes]
    Arithmetic and traffic are added, so a kernel reaches less of the peak the fewer FLOPs it has for a byte. For a
    product of (m, k) and (k, n) in 16 bits bytes over FLOPs are 1/m + 1/n + 1/k: what is lost grows with the smallest
    of the three, as tables of isolated products show. So does attention over short sequences, and a grouped product
    with few rows an expert.
    """
    table = _kernel_table(device, efficiency)
    kernels, dtypes = np.asarray(kernel_ids), np.asarray(dtype_ids)
    ns_per_flop = table.ns_per_flop[kernels, dtypes]
    if np.isnan(ns_per_flop).any():
        missing = sorted({DTYPES[i] for i in np.broadcast_to(dtypes, ns_per_flop.shape)[np.isnan(ns_per_flop)]})
        raise InputError(Problem("training.precision", f"{device.name} does not compute in {', '.join(missing)}"))
    busy = np.asarray(flops) * ns_per_flop + np.asarray(bytes_moved) * table.ns_per_byte[kernels]
    result: NDArray[np.int64] = np.ceil(np.maximum(busy, table.shortest_ns)).astype(np.int64)
    return result


@lru_cache(maxsize=8)
def _kernel_table(device: Device, efficiency: Efficiency) -> _KernelTable:
    shares = [getattr(efficiency.kernels, "copy_" if name == "copy" else name) for name in KERNELS]
    per_flop = np.array([[_ns_per_flop(device, efficiency, share, dtype) for dtype in DTYPES] for share in shares])
    per_byte = np.array([1e9 / (device.memory_bandwidth.si * share.memory.si) for share in shares])
    return _KernelTable(per_flop, per_byte, efficiency.shortest.si * 1e9)


def _ns_per_flop(device: Device, efficiency: Efficiency, share: KernelShare, dtype: str) -> float:
    if share.compute is None:
        return 1e9 / device.peak.fp32.si
    peak, kept = getattr(device.peak, dtype), getattr(efficiency.low_precision, dtype, None)
    return 1e9 / (peak.si * share.compute.si * (kept.si if kept else 1.0)) if peak else math.nan


def exposed_share(overlap: Overlap, axis: str, overlapped: Sequence[str]) -> float:
    """Of the time of a collective inside a layer, what its kernels do not hide."""
    if axis not in overlapped:
        return 1.0
    return overlap.tensor.si if axis == "tp" else overlap.expert.si


def wire_bytes(collective: str, payload_bytes: int, group_size: int) -> int:
    """Bytes that leave one rank on a ring, the mean over the group; payload as in the report's `traffic`.

    Rounded to the nearest integer, halves to even, of the product of floats, so that sums over calls agree with
    PyTorch traces that were counted so. KeyError: no such collective.
    """
    return round(payload_bytes * wire_factor(collective, group_size))


def wire_factor(collective: str, group_size: int) -> float:
    """Of the payload, the share that leaves one rank on a ring. KeyError: no such collective."""
    if collective not in COLLECTIVES:
        raise KeyError(collective)
    if group_size <= 1:
        return 0.0
    if collective == "send_recv":
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (group_size - 1) / group_size


def collective_ns(collective: str, payload_bytes: int, group_size: int, link: Link) -> int:
    """Nanoseconds of one call, alpha plus wire bytes over bus bandwidth; 0 in a group of one.

    Rings (all_gather, reduce_scatter, all_reduce, and the pipelined chains broadcast and reduce) go at the pace of the
    slowest level: NVLink, or the NICs of the group's ranks in its emptiest node. all_to_all is pairwise: what leaves
    the node goes through the rank's own NIC. send_recv is one message over one NIC. KeyError: no such collective.
    """
    factor = wire_factor(collective, group_size)
    if group_size <= 1 or link.name == "self":
        return 0
    if collective in ("broadcast", "reduce"):
        factor = 1.0  # every byte goes down the whole chain, however long
    busy = payload_bytes * _seconds_per_byte(collective, factor, group_size, link)
    return math.ceil((_latency_s(collective, group_size, link) + busy) * 1e9)


def _seconds_per_byte(collective: str, factor: float, group_size: int, link: Link) -> float:
    rate = _bus_bandwidth(link.fabric, collective) or link.bytes_per_s
    if link.name == "nvlink":
        return factor / rate
    inside = factor / (_bus_bandwidth(link.local, collective) or math.inf)
    if collective == "all_to_all":
        return max(inside, (group_size - link.ranks_per_node) / group_size / rate)
    num_nics = 1 if collective in ("send_recv", "gather") else link.ranks_per_node
    return max(inside, factor / (rate * num_nics))


def _bus_bandwidth(fabric: Fabric | None, collective: str) -> float:
    """Bytes/s in place; 0 when nothing is known."""
    if fabric is None:
        return 0.0
    rate: Rate = getattr(fabric.bus_bandwidth, _MEASURED_AS.get(collective, collective))
    return rate.si


def _latency_s(collective: str, group_size: int, link: Link) -> float:
    rounds = 2 if collective == "all_reduce" else 1
    hops = rounds * (1 if collective == "send_recv" else min(group_size - 1, _MAX_HOPS))
    inner = link.fabric if link.name == "nvlink" else link.local
    inside = inner.latency.si + hops * inner.hop_latency.si if inner else 0.0
    if link.name == "nvlink":
        return max(inside, link.latency_s)
    num_nodes = 2 if collective == "send_recv" else link.num_nodes
    hop = link.fabric.hop_latency.si if link.fabric else 0.0
    return max(inside, link.latency_s + hop * math.sqrt(num_nodes))


def copy_ns(host_link: HostLink, num_bytes: ArrayLike, direction: Literal["to_device", "to_host"]) -> NDArray[np.int64]:
    """Nanoseconds of each copy between a GPU and pinned host memory, alone on its link; 0 for no bytes."""
    size = np.asarray(num_bytes)
    rate = host_link.to_device if direction == "to_device" else host_link.to_host
    busy = np.ceil(host_link.latency.si * 1e9 + size * (1e9 / rate.si))
    result: NDArray[np.int64] = np.where(size > 0, busy, 0).astype(np.int64)
    return result
