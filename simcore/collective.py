"""How long one collective takes alone, in whole nanoseconds, and which bytes of it leave a rank over which links.

[Note: measured or model]
A collective that was measured on so many ranks of one host takes the time of the table (`curves.py`), within its sizes.
Everything else is a model: alpha plus bytes over the bus bandwidth of the topology file. A host's table holds for any
of its ranks, because a switch joins them. In an NVLink domain of several hosts (NVL72) the table of one host is taken
for what crosses to others: at the bytes that a rank sends, its running maximum, and the hops of the larger ring more.

[Note: across nodes]
A ring crosses the border of each node once for each of its channels, and there are as many channels as NICs: it goes at
the rate of a NIC times the ranks of the group in the node that has fewest, or at NVLink's pace (NCCL 2.30.7
`graph/tuning.cc`: bwInter of all channels). All-gather and reduce-scatter are rings there; without a network that
computes, NCCL allows them nothing else but PAT, for one rank a node. An all-reduce on exactly two nodes whose switches
sum is a tree between them, with half a ring's bytes over the NICs: NCCL doubles their rate (`NVLSTree`, 2 nodes); on
more nodes it counts the tree as fast as the ring, and so does this. All-to-all is pairwise, each rank through its own
NIC; a message takes one NIC.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from simcore.curves import Curve, load_curves
from simcore.quantity import Rate
from simcore.topology import Fabric, Link

__all__ = ["COLLECTIVES", "Crossing", "Dispatch", "Timing", "collective_ns", "crossing", "timing", "wire_bytes",
           "wire_factor"]

COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "gather",
                      "send_recv")
Timing = Literal["measured", "model"]

# Whose bus bandwidth a collective without a measurement of its own takes.
_MEASURED_AS: Final = {"broadcast": "all_gather", "reduce": "reduce_scatter", "gather": "send_recv"}
_CHAINS: Final = ("broadcast", "reduce")
_PAIRWISE: Final = ("all_to_all", "gather")

# NCCL's latency grows by a hop for each rank up to the 8 that were measured; beyond, trees and in-switch reduction
# take over from the ring, and it is held (assumed).
_MAX_HOPS: Final = 7


class Crossing(NamedTuple):
    """Of the payload, what leaves a rank over NVLink and over the network: the mean over the group."""

    nvlink: float
    network: float


class Dispatch(NamedTuple):
    """Tokens that go to experts by one copy a rank (DeepEP, HybridEP), not by one a choice.

    [Note: what a dispatch sends]
    A token goes once to every node that has one of its experts, to the rank that stands where its own does, and from
    there over NVLink to the ranks that want it (DeepEP dd758ca `csrc/kernels/legacy/layout.cu`, get_dispatch_layout:
    is_token_in_rank, num_tokens_per_rdma_rank; `internode.cu` forwards). Coming back, rows are summed on the way.
    The payload counts a copy for every rank, a rank's own too, as operators write it.
    """

    num_experts: int
    top_k: int

    def places(self, number: int) -> float:
        """Of so many equal parts of the experts, how many a token's choices meet on average; choices are uniform."""
        others = self.num_experts - self.num_experts // number
        missed = math.prod((others - i) / (self.num_experts - i) for i in range(self.top_k))
        return number * (1 - missed)

    def crossing(self, group_size: int, num_nodes: int) -> Crossing:
        """A token's copies to other nodes, and over NVLink those to own neighbours and those that are handed on."""
        in_node = group_size / num_nodes
        copies = self.places(num_nodes) / self.places(group_size)
        handed_on = (group_size - in_node) / group_size * (in_node - 1) / in_node
        return Crossing((in_node - 1) / group_size + handed_on, copies * (num_nodes - 1) / num_nodes)


# ---- bytes ----------------------------------------------------------------------------------------------------------
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


def crossing(collective: str, group_size: int, link: Link, dispatch: Dispatch | None = None) -> Crossing:
    """By which links the payload leaves a rank, the mean over the group. KeyError: no such collective.

    Members are counted as if the nodes held equal parts. The sum is `wire_factor`, but for a dispatch across nodes.
    A message goes to the next rank of the group, round the ring.
    """
    factor = wire_factor(collective, group_size)
    if group_size <= 1 or link.num_nodes == 1:
        return Crossing(factor, 0.0)
    if dispatch is not None and collective == "all_to_all":
        return dispatch.crossing(group_size, link.num_nodes)
    network = factor * _network_share(collective, group_size, link)
    return Crossing(factor - network, network)


def _network_share(collective: str, group_size: int, link: Link) -> float:
    """Of what leaves a rank, what leaves its node too."""
    if collective in _PAIRWISE:
        return (group_size - group_size / link.num_nodes) / (group_size - 1)
    if collective in _CHAINS:
        return (link.num_nodes - 1) / (group_size - 1)
    return link.num_nodes / group_size * _tree_factor(collective, link)


def _tree_factor(collective: str, link: Link) -> float:
    """What is left over the NICs of a ring's bytes where switches sum on both of two nodes."""
    sums = link.local is not None and link.local.sums_in_switch
    return 0.5 if collective == "all_reduce" and sums and link.num_nodes == 2 and link.ranks_per_node > 1 else 1.0


# ---- time -----------------------------------------------------------------------------------------------------------
def timing(collective: str, payload_bytes: int, group_size: int, link: Link,
           dispatch: Dispatch | None = None) -> Timing:
    """How `collective_ns` finds its time, see [Note: measured or model]."""
    curve = _measured(collective, group_size, link) if dispatch is None and link.num_hosts == 1 else None
    return "measured" if curve is not None and curve.covers(payload_bytes) else "model"


def collective_ns(collective: str, payload_bytes: int, group_size: int, link: Link,
                  dispatch: Dispatch | None = None) -> int:
    """Nanoseconds of one call, see [Note: measured or model]; 0 in a group of one. KeyError: no such collective."""
    factor = wire_factor(collective, group_size)
    if group_size <= 1 or link.name == "self":
        return 0
    if link.num_hosts > 1:
        return _domain_ns(collective, payload_bytes, group_size, link)
    curve = _measured(collective, group_size, link)
    if curve is not None:
        return curve.ns(payload_bytes)
    return _model_ns(collective, payload_bytes, group_size, link, factor, dispatch)


def _model_ns(collective: str, payload_bytes: int, group_size: int, link: Link, factor: float,
              dispatch: Dispatch | None = None) -> int:
    """Alpha plus bytes over bus bandwidth."""
    if collective in _CHAINS:
        factor = 1.0  # every byte goes down the whole chain, however long
    busy = payload_bytes * _seconds_per_byte(collective, factor, group_size, link, dispatch)
    return math.ceil((_latency_s(collective, group_size, link) + busy) * 1e9)


def _domain_ns(collective: str, payload_bytes: int, group_size: int, link: Link) -> int:
    """Over NVLink from host to host: as many bytes leave a rank, and a larger ring has more hops."""
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
    """At the pace of the slowest level, see [Note: across nodes]."""
    rate = _bus_bandwidth(link.fabric, collective) or link.bytes_per_s
    if link.name == "nvlink":
        return factor / rate
    local = _bus_bandwidth(link.local, collective) or math.inf
    if collective == "all_to_all":
        near, far = dispatch.crossing(group_size, link.num_nodes) if dispatch else (
            factor, (group_size - link.ranks_per_node) / group_size)
        return max(near / local, far / rate)
    num_nics = 1 if collective in ("send_recv", "gather") else link.ranks_per_node
    return max(factor / local, factor * _tree_factor(collective, link) / (rate * num_nics))


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
