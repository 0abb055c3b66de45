"""Time of one collective without contention, in integer nanoseconds, and the bytes that leave a rank over each link.

[Note: measured or model]
A collective that was measured on that number of ranks of one host takes the time of the table (`collective_curves.py`),
within its sizes.
Everything else is a model: alpha plus bytes over the bus bandwidth of the topology file. A host's table holds for any
of its ranks, because a switch joins them. In an NVLink domain of several hosts (NVL72) the table of one host is used
across hosts: its running maximum at the bytes that a rank sends, plus the additional hops of the larger ring.

[Note: across nodes]
A ring crosses the border of each node once for each of its channels, and there are as many channels as NICs: it goes at
the rate of a NIC times the ranks of the group in the node that has fewest, or at NVLink's pace (nccl 5067397c
`graph/tuning.cc`: bwInter of all channels). All-gather and reduce-scatter are rings there; without a network that
reduces, NCCL allows only PAT besides, for one rank a node. An all-reduce on exactly two nodes whose switches
sum is a tree between them, so each node sends the buffer once and not nearly twice: NCCL doubles their rate (NVLSTree,
nNodes <= 2); on more nodes it counts the tree as fast as the ring, and so does this. All-to-all is pairwise, each rank
through its own NIC; a message takes one NIC.

[Note: links in pairs]
Where each GPU of a node has a link to each other one and there is no switch, a group of n uses n - 1 of a GPU's links:
AMD's Infinity Fabric (ml-engineering 744d01e1, all-reduce of MI300X: 47.7 GB/s for two GPUs, 312.9 for eight).
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from simcore.hardware.collective_curves import Curve, load_curves
from simcore.hardware.topology import Fabric, Link
from simcore.inputs.quantity import Rate
from simcore.placement.token_dispatch import Dispatch
from simcore.timing.nccl_latency import over_nodes_s

__all__ = ["COLLECTIVES", "Crossing", "Timing", "algorithm", "collective_ns", "crossing", "measured_sizes", "timing",
           "wire_bytes", "wire_factor"]

COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "gather",
                      "send_recv")
Timing = Literal["measured", "model"]

# The collective whose bus bandwidth stands for one that was not measured.
_MEASURED_AS: Final = {"broadcast": "all_gather", "reduce": "reduce_scatter", "gather": "send_recv"}
_CHAINS: Final = ("broadcast", "reduce")
_PAIRWISE: Final = ("all_to_all", "gather")

# NCCL's latency grows by a hop for each rank up to the 8 that were measured; beyond, trees and in-switch reduction
# take over from the ring, and it is held (assumed).
_MAX_HOPS: Final = 7


class Crossing(NamedTuple):
    """Shares of a collective's payload, the mean over the ranks of the group.

    `wire`: share that leaves a rank; `network`: share that also leaves its node and crosses the network.
    """

    wire: float
    network: float

    @property
    def nvlink(self) -> float:
        """Share of the payload that leaves the rank but not its node."""
        return self.wire - self.network


# ---- bytes ----------------------------------------------------------------------------------------------------------
def wire_bytes(collective: str, payload_bytes: int, group_size: int) -> int:
    """Bytes of one call that leave one rank on a ring, the mean over the group.

    `payload_bytes`: as in the report's `TrafficRow`; `group_size`: number of ranks. Rounded to the nearest integer,
    halves to even, of the product of floats, so that sums over calls agree with PyTorch traces that were counted so.
    Raises KeyError for an unknown collective.
    """
    return round(payload_bytes * wire_factor(collective, group_size))


def wire_factor(collective: str, group_size: int) -> float:
    """Share of the payload that leaves one rank on a ring, the mean over the group; 0 in a group of one.

    `group_size`: number of ranks. In a gather all ranks but one send, a part each. Raises KeyError for an unknown
    collective.
    """
    if collective not in COLLECTIVES:
        raise KeyError(collective)
    if group_size <= 1:
        return 0.0
    if collective == "send_recv":
        return 1.0
    factor = (2 if collective == "all_reduce" else 1) * (group_size - 1) / group_size
    return factor / group_size if collective == "gather" else factor


def algorithm(collective: str, link: Link, dispatch: Dispatch | None = None) -> str:
    """Name of the algorithm of a collective: ring, tree, chain, pairwise, two_level or direct.

    `collective`: one of `COLLECTIVES`, or copy, which is direct. `dispatch`: the token dispatcher if the collective is
    its all-to-all, which across nodes is two_level.
    """
    if collective == "all_to_all":
        return "two_level" if dispatch is not None and link.num_nodes > 1 else "pairwise"
    if collective in ("send_recv", "gather", "copy"):
        return "direct"
    return "chain" if collective in _CHAINS else "tree" if _is_tree(collective, link) else "ring"


def crossing(collective: str, group_size: int, link: Link, dispatch: Dispatch | None = None) -> Crossing:
    """Shares of a collective's payload that leave a rank and its node, the mean over the group.

    `group_size`: number of ranks; `dispatch`: token dispatcher of an all-to-all of experts. Members are counted as if
    the nodes held equal parts. The share that leaves a rank is `wire_factor`, except for a dispatch across nodes. A
    message goes to the next rank of the group, around the ring. A copy from or to the host leaves the rank and not the
    node. Raises KeyError for an unknown collective.
    """
    if link.name == "host":
        return Crossing(1.0, 0.0)
    factor = wire_factor(collective, group_size)
    if group_size <= 1 or link.num_nodes == 1:
        return Crossing(factor, 0.0)
    if dispatch is not None and collective == "all_to_all":
        near, far = dispatch.crossing(group_size, link.num_nodes)
        return Crossing(near + far, far)
    return Crossing(factor, min(_network_factor(collective, factor, group_size, link), factor))


def _network_factor(collective: str, factor: float, group_size: int, link: Link) -> float:
    """Share of the payload that also leaves a rank's node; `factor`: share that leaves the rank."""
    if collective in _PAIRWISE:
        return factor * (group_size - group_size / link.num_nodes) / (group_size - 1)
    if collective in _CHAINS:
        return factor * (link.num_nodes - 1) / (group_size - 1)
    return _over_the_border(collective, factor, link) * link.num_nodes / group_size


def _over_the_border(collective: str, factor: float, link: Link) -> float:
    """Share of the payload that leaves a node: that of each rank in a ring, 1 up or down a tree."""
    return 1.0 if _is_tree(collective, link) else factor


def _is_tree(collective: str, link: Link) -> bool:
    """True if an all-reduce is a tree between two nodes; NCCL's nodes are hosts, so racks of many hosts never are."""
    sums = link.local is not None and link.local.sums_in_switch
    return collective == "all_reduce" and sums and link.num_hosts == 2 and link.ranks_per_node > 1


# ---- time -----------------------------------------------------------------------------------------------------------
def timing(collective: str, payload_bytes: int, group_size: int, link: Link,
           dispatch: Dispatch | None = None) -> Timing:
    """Source of the time that `collective_ns` returns: "measured" or "model" ([Note: measured or model]).

    Measured: a table for this number of ranks of one host covers the payload; never with a token dispatcher
    (`dispatch`).
    """
    return "measured" if payload_bytes in measured_sizes(collective, group_size, link, dispatch) else "model"


def measured_sizes(collective: str, group_size: int, link: Link, dispatch: Dispatch | None = None) -> range:
    """Range of payloads in bytes that a measured table covers; an empty range if there is no table.

    None counts for a token dispatcher (`dispatch`) or where the group spans hosts.
    """
    curve = _measured(collective, group_size, link) if dispatch is None and link.num_hosts == 1 else None
    return range(0) if curve is None else range(curve.sizes[0], curve.sizes[-1] + 1)


def collective_ns(collective: str, payload_bytes: int, group_size: int, link: Link,
                  dispatch: Dispatch | None = None) -> int:
    """Time in ns of one call without contention; 0 in a group of one.

    `payload_bytes`: as in the report's `TrafficRow`; `dispatch`: token dispatcher of an all-to-all of experts. From a
    measured table where there is one, else latency plus bytes over bandwidth ([Note: measured or model]). A copy
    between a GPU and its host takes the link's latency plus its bytes at the link's rate; 0 bytes take 0 ns. Raises
    KeyError for an unknown collective.
    """
    if link.name == "host":
        return math.ceil((link.latency_s + payload_bytes / link.bytes_per_s) * 1e9) if payload_bytes else 0
    factor = wire_factor(collective, group_size)
    if group_size <= 1 or link.name == "self":
        return 0
    if link.name == "nvlink" and link.num_hosts > 1:
        return _domain_ns(collective, payload_bytes, group_size, link)
    curve = _measured(collective, group_size, link)
    if curve is not None:
        return curve.ns(payload_bytes)
    return _model_ns(collective, payload_bytes, group_size, link, factor, dispatch)


def _model_ns(collective: str, payload_bytes: int, group_size: int, link: Link, factor: float,
              dispatch: Dispatch | None = None) -> int:
    """Alpha plus bytes over bus bandwidth. A chain forwards every byte; all parts of a gather arrive at one rank."""
    factor = 1.0 if collective in _CHAINS else factor * (group_size if collective == "gather" else 1)
    busy = payload_bytes * _seconds_per_byte(collective, factor, group_size, link, dispatch)
    steps = over_nodes_s(collective, group_size, link.num_nodes, busy) if link.name == "network" else 0.0
    return math.ceil(max(_latency_s(collective, group_size, link) + busy, steps) * 1e9)


def _domain_ns(collective: str, payload_bytes: int, group_size: int, link: Link) -> int:
    """Time in ns over NVLink between hosts: the same bytes leave a rank, and a larger ring has more hops."""
    factor = wire_factor(collective, group_size)
    ranks = min(group_size, _most_ranks(collective, link))
    curve = _measured(collective, ranks, link)
    if curve is None:
        return _model_ns(collective, payload_bytes, group_size, link, factor)
    hops = _latency_s(collective, group_size, link) - _latency_s(collective, ranks, link)
    return curve.rising().ns(payload_bytes * factor / wire_factor(collective, ranks)) + math.ceil(hops * 1e9)


def _measured(collective: str, ranks: int, link: Link) -> Curve | None:
    fabric = link.fabric if link.name == "nvlink" else None
    return load_curves(fabric.curves).measured(collective, ranks) if fabric and fabric.curves else None


def _most_ranks(collective: str, link: Link) -> int:
    fabric = link.fabric
    return load_curves(fabric.curves).most_ranks(collective) if fabric and fabric.curves else 0


def _seconds_per_byte(collective: str, factor: float, group_size: int, link: Link,
                      dispatch: Dispatch | None) -> float:
    """Seconds per byte of the payload on the slowest level, see [Note: across nodes]."""
    if link.name == "nvlink":
        return factor / (_inside(link.fabric, collective, group_size) or link.bytes_per_s)
    rate = _bus_bandwidth(link.fabric, collective) or link.bytes_per_s
    local = _inside(link.local, collective, link.ranks_per_node) or math.inf
    if collective == "all_to_all":
        near, far = dispatch.crossing(group_size, link.num_nodes) if dispatch else (
            factor, (group_size - link.ranks_per_node) / group_size)
        return max(near / local, far / rate)
    num_nics = 1 if collective in ("send_recv", "gather") else link.ranks_per_node
    return max(factor / local, _over_the_border(collective, factor, link) / (rate * num_nics))


def _inside(fabric: Fabric | None, collective: str, ranks: int) -> float:
    """Bus bandwidth in bytes/s of so many ranks of one node; see [Note: links in pairs]. 0 if it is unknown."""
    reached = _bus_bandwidth(fabric, collective)
    if fabric is None or fabric.joined_to is None or collective in ("send_recv", "gather"):
        return reached
    return reached * min(1.0, max(1, ranks - 1) / int(fabric.joined_to))


def _bus_bandwidth(fabric: Fabric | None, collective: str) -> float:
    """Bus bandwidth in bytes/s; 0 if it is unknown."""
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
