"""Durations of phases that move a model: reading and writing files, merging adapters, export.

[Note: time of phases]
A phase moves bytes through resources that can work at the same time: drives of a host, the link of the busiest GPU each
way, memory of that GPU and of the host, products of matrices. The slowest of them is the phase's duration; what one
resource does is added up. Where a library waits for one before it uses the next (PEFT copies each packed matrix to the
host and back) the true duration is longer, so these are least durations. Copies run at the rates of `node.host_link`.
Gathers over NVLink or the network, which are faster than a drive, names and headers of files, and the start of
processes are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.hardware.nvme import Nvme
from simcore.hardware.topology import Topology
from simcore.inputs.quantity import Rate
from simcore.results.report import Assumption

__all__ = ["Moved", "drives_of", "least_seconds", "of_drives"]

_SOURCE: Final = ("the topology has no node.nvme: one PCIe 4.0 x4 drive, Samsung PM9A3 U.2, 6.5 and 3.5 GB/s "
                  "(heise.de/-4720224)")
_ASSUMED: Final = Nvme(read=Rate(value="6.5 GB/s", kind="assumed", source=_SOURCE),
                       write=Rate(value="3.5 GB/s", kind="assumed", source=_SOURCE))


@dataclass(frozen=True, slots=True)
class Moved:
    """Work of one phase: bytes on the busiest host and GPU, and FLOPs.

    `read`, `written`: on the drives of a host. `to_device`, `to_host`: over the link of one GPU. `on_device`,
    `on_host`: read from and written to its memory and the host's. `flops`: of products on a GPU, in fp32 if
    `in_fp32`.
    """

    read: int = 0
    written: int = 0
    to_device: int = 0
    to_host: int = 0
    on_device: int = 0
    on_host: int = 0
    flops: int = 0
    in_fp32: bool = False


def drives_of(topology: Topology) -> Nvme:
    """Drives of a host: those that the topology names, or one that is assumed."""
    return topology.node.nvme or _ASSUMED


def least_seconds(moved: Moved, topology: Topology) -> float:
    """Duration of a phase: that of its slowest resource, see [Note: time of phases].

    Memory of the host is left out where the topology does not say its bandwidth.
    """
    node, device, drives = topology.node, topology.device, drives_of(topology)
    peak = device.peak.fp32 if moved.in_fp32 else device.products
    host = node.host_bandwidth
    return max(moved.read / drives.read.si + moved.written / drives.write.si,
               moved.to_device / node.host_link.to_device.si, moved.to_host / node.host_link.to_host.si,
               moved.on_device / device.memory_bandwidth.si, moved.flops / peak.si,
               moved.on_host / host.si if host else 0.0)


def of_drives(topology: Topology) -> Assumption:
    """Rates of the drives that durations rely on, and where they are from."""
    drives = drives_of(topology)
    return Assumption(what="drives of a host", value=f"read {drives.read.value}, written {drives.write.value}",
                      kind="assumed" if drives.read.kind == "assumed" else "derived", source=drives.read.source)
