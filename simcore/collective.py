"""How long one collective takes alone, in whole nanoseconds, and how many bytes of it leave a rank.

Rates come from the topology, the result is rounded up once. Queues and shared links are not here (`timeline.py`).
"""

from __future__ import annotations

import math
from typing import Final

from simcore.quantity import Rate
from simcore.topology import Fabric, Link

__all__ = ["COLLECTIVES", "collective_ns", "wire_bytes", "wire_factor"]

COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "gather",
                      "send_recv")

# Whose bus bandwidth a collective without a measurement of its own takes.
_MEASURED_AS: Final = {"broadcast": "all_gather", "reduce": "reduce_scatter", "gather": "send_recv"}

# NCCL's latency grows by a hop for each rank up to the 8 that were measured; beyond, trees and in-switch reduction
# take over from the ring, and it is held (assumed).
_MAX_HOPS: Final = 7


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
