"""Collectives: bytes on the wire, and how long they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.hardware.collective_curves import load_curves
from simcore.hardware.topology import Link, Topology, load_topology, topology_names
from simcore.placement.token_dispatch import Dispatch
from simcore.timing.collective import (
    COLLECTIVES,
    algorithm,
    collective_ns,
    crossing,
    measured_sizes,
    timing,
    wire_bytes,
)


def unmeasured(topology: Topology) -> Topology:
    """The same machine without tables: what is left is the model."""
    assert topology.node.nvlink is not None
    nvlink = topology.node.nvlink.model_copy(update={"curves": None})
    return topology.model_copy(update={"node": topology.node.model_copy(update={"nvlink": nvlink})})


MEASURED = {name: load_topology(name) for name in ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72")}
A100, H100, B200, NVL72 = (unmeasured(MEASURED[f]) for f in ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72"))

payloads = st.integers(0, 2**40)
collectives = st.sampled_from(COLLECTIVES)
unhurried = settings(deadline=None, max_examples=50)
powers = st.sampled_from([1, 2, 4, 8, 16, 32])


def counted_by_the_trace(collective: str, size: int, group: int) -> int:
    """The same sum as the scripts under tests/truth make it; what is gathered comes from one rank less."""
    return round(size * (2 * (group - 1) / group if collective == "all_reduce" else (group - 1) / group))


@unhurried
@given(collective=st.sampled_from(COLLECTIVES[:-2]), size=payloads, group=st.integers(1, 200_000))
def test_wire_bytes_are_those_of_the_traces(collective: str, size: int, group: int) -> None:
    assert wire_bytes(collective, size, group) == counted_by_the_trace(collective, size, group)


def test_a_message_is_all_wire() -> None:
    assert wire_bytes("send_recv", 12345, 4) == 12345
    assert wire_bytes("send_recv", 12345, 1) == 0


# ---- walked: who sends what to whom ---------------------------------------------------------------------------------
Message = tuple[int, int, Fraction]
"""From, to, the share of the payload."""


def messages(collective: str, group: int, per_node: int, *, tree: bool) -> Iterator[Message]:
    """All messages of one call among ranks 0 to group - 1, in order of their nodes."""
    part, right = Fraction(1, group), [(rank, (rank + 1) % group) for rank in range(group)]
    if collective == "all_reduce" and tree:
        yield from tree_of_two(per_node)
    elif collective in ("all_gather", "reduce_scatter", "all_reduce"):
        rounds = (2 if collective == "all_reduce" else 1) * (group - 1)
        yield from ((a, b, part) for _ in range(rounds) for a, b in right)
    elif collective == "all_to_all":
        yield from ((a, b, part) for a in range(group) for b in range(group) if a != b)
    elif collective == "gather":
        yield from ((a, 0, part) for a in range(1, group))
    elif collective == "send_recv":
        yield from ((a, b, Fraction(1)) for a, b in right)
    else:
        yield from ((a, b, Fraction(1)) for a, b in right[:-1])


def tree_of_two(per_node: int) -> Iterator[Message]:
    """Reduce in each node, half a chunk up to the other node and half down from it and back again, gather in the node.

    NCCL's double tree of two nodes: each is the root of one.
    """
    chunk = Fraction(1, per_node)
    for a in range(2 * per_node):
        first, other = a // per_node * per_node, (a + per_node) % (2 * per_node)
        yield from ((a, first + (a + 1) % per_node, chunk) for _ in range(2 * (per_node - 1)))
        yield from ((a, other, chunk / 2) for _ in ("up", "down"))


@unhurried
@given(collective=collectives, per_node=st.integers(1, 8), num_nodes=st.integers(1, 4), sums=st.booleans())
def test_what_is_sent_is_received_over_the_links_that_are_told(collective: str, per_node: int, num_nodes: int,
                                                              sums: bool) -> None:
    group, topology = per_node * num_nodes, H100 if sums else A100
    link = topology.link(group, 1) if num_nodes == 1 else spread(topology, per_node, num_nodes)
    sent = {far: [Fraction(0)] * group for far in (False, True)}
    received = {far: [Fraction(0)] * group for far in (False, True)}
    tree = sums and num_nodes == 2 and per_node > 1
    for source, target, share in messages(collective, group, per_node, tree=tree):
        far = source // per_node != target // per_node
        sent[far][source] += share if source != target else 0
        received[far][target] += share if source != target else 0
    told = crossing(collective, group, link)
    assert [sum(sent[far]) for far in (False, True)] == [sum(received[far]) for far in (False, True)]
    assert float(sum(sent[False])) == pytest.approx(group * told.nvlink)
    assert float(sum(sent[True])) == pytest.approx(group * told.network)
    if collective not in ("broadcast", "reduce", "gather"):  # no root: each sends what it receives
        assert [sum(both) for both in zip(*sent.values(), strict=True)] == [
            sum(both) for both in zip(*received.values(), strict=True)]


def spread(topology: Topology, per_node: int, num_nodes: int) -> Link:
    """The link of so many ranks in each of so many nodes."""
    return replace(topology.link(2, 8), num_nodes=num_nodes, num_hosts=num_nodes, ranks_per_node=per_node)


@pytest.mark.parametrize(("collective", "topology", "ranks", "stride", "name"), [
    ("all_gather", "dgx-h100", 16, 1, "ring"),
    ("all_reduce", "dgx-h100", 8, 1, "ring"),
    ("all_reduce", "dgx-h100", 16, 1, "tree"),
    ("all_reduce", "dgx-h100", 2, 8, "ring"),  # one rank a node: nothing to sum in a switch
    ("all_reduce", "dgx-h100", 24, 1, "ring"),
    ("all_reduce", "dgx-a100", 16, 1, "ring"),  # its switches do not sum
    ("all_reduce", "gb200-nvl72", 144, 1, "ring"),  # two racks are 36 of NCCL's nodes
    ("broadcast", "dgx-h100", 8, 1, "chain"),
    ("all_to_all", "dgx-h100", 16, 1, "pairwise"),
    ("send_recv", "dgx-h100", 2, 8, "direct"),
])
def test_algorithms(collective: str, topology: str, ranks: int, stride: int, name: str) -> None:
    assert algorithm(collective, MEASURED[topology].link(ranks, stride)) == name


def test_a_tree_of_two_nodes_is_nearly_twice_as_fast_as_their_ring() -> None:
    """Over the NICs goes the payload, not 15/8 of it; here NVLink is faster than both."""
    link = replace(B200.link(16, 1), fabric=A100.link(16, 1).fabric)
    assert link.local is not None
    ring = replace(link, local=link.local.model_copy(update={"sums_in_switch": False}))
    slow, fast = (collective_ns("all_reduce", 2**34, 16, each) for each in (ring, link))
    assert slow / fast == pytest.approx(15 / 8, rel=0.01)


DEEP = Dispatch(256, 8)


def test_a_dispatch_over_nodes_takes_the_time_of_its_slowest_link() -> None:
    """64 ranks in 8 nodes of H100: a token meets 5.27 nodes, so 4.6 copies leave each, over one NIC a rank."""
    link, payload = H100.link(64, 1), 2**30
    tokens = payload / DEEP.places(64)
    nic = link.fabric.bus_bandwidth.all_to_all.si if link.fabric else 0
    busy = tokens * DEEP.places(8) * 7 / 8 / nic
    alone = collective_ns("all_to_all", payload, 64, link, DEEP)
    assert alone == pytest.approx(busy * 1e9, rel=0.01)
    assert alone < 0.8 * collective_ns("all_to_all", payload, 64, link)
    assert algorithm("all_to_all", link, DEEP) == "two_level"
    assert timing("all_to_all", 2**20, 8, MEASURED["dgx-h100"].link(8, 1), DEEP) == "model"


# ---- time -----------------------------------------------------------------------------------------------------------
@unhurried
@given(collective=collectives, size=payloads, more=payloads, group=powers, stride=powers)
def test_collectives_never_get_faster_with_more_bytes(collective: str, size: int, more: int, group: int,
                                                     stride: int) -> None:
    link = H100.link(group, stride)
    assert collective_ns(collective, size, group, link) <= collective_ns(collective, size + more, group, link)


@unhurried
@given(collective=collectives, size=payloads, group=powers, stride=powers)
def test_a_group_twice_as_large_is_never_faster(collective: str, size: int, group: int, stride: int) -> None:
    for topology in (A100, H100, B200):
        small, large = topology.link(group, stride), topology.link(2 * group, stride)
        assert collective_ns(collective, size, group, small) <= collective_ns(collective, size, 2 * group, large)


@unhurried
@given(collective=collectives, size=payloads, group=st.integers(1, 5000), stride=st.sampled_from([1, 8]))
def test_more_members_over_the_same_kind_of_link_are_never_faster(collective: str, size: int, group: int,
                                                                 stride: int) -> None:
    link = H100.link(64, stride)
    assert collective_ns(collective, size, group, link) <= collective_ns(collective, size, group + 1, link)


@unhurried
@given(collective=collectives, size=payloads, group=st.sampled_from([2, 4, 8]))
def test_the_network_is_never_faster_than_nvlink(collective: str, size: int, group: int) -> None:
    inside, across = H100.link(group, 1), H100.link(group, 8)
    assert collective_ns(collective, size, group, inside) <= collective_ns(collective, size, group, across)


@unhurried
@given(collective=collectives, group=st.integers(2, 64), size=payloads)
def test_nothing_beats_the_wire(collective: str, group: int, size: int) -> None:
    """All bytes that leave a rank fit through the datasheet bandwidth of its links."""
    link = B200.link(group, 1)
    fastest = 900e9
    assert collective_ns(collective, size, group, link) >= wire_bytes(collective, size, group) / fastest * 1e9 - 1


def test_a_group_of_one_needs_no_time() -> None:
    assert collective_ns("all_gather", 2**30, 1, H100.link(1, 1)) == 0


def test_all_gather_in_a_node_is_alpha_plus_wire_over_bus_bandwidth() -> None:
    ns = collective_ns("all_gather", 2**29, 8, H100.link(8, 1))
    assert ns == pytest.approx((5.22e-6 + 7 * 0.91e-6 + 2**29 * 7 / 8 / 286.6e9) * 1e9, abs=1)


def test_a_ring_over_whole_nodes_uses_all_their_nics() -> None:
    one_nic = collective_ns("reduce_scatter", 2**32, 16, H100.link(16, 8))
    all_nics = collective_ns("reduce_scatter", 2**32, 16, H100.link(16, 1))
    assert one_nic / all_nics == pytest.approx(8, rel=0.02)


def test_measured_bus_bandwidth_of_four_b200_nodes_is_met_within_a_third() -> None:
    """All-reduce of 32 ranks over 8 x 50 GB/s: 229 GB/s at 256 MiB, 382 GB/s at 16 GiB (ml-engineering 744d01e1)."""
    link = B200.link(32, 1)
    for size, measured in ((2**28, 229e9), (2**34, 382e9)):
        bus = wire_bytes("all_reduce", size, 32) / collective_ns("all_reduce", size, 32, link) * 1e9
        assert bus == pytest.approx(measured, rel=0.34)


def test_a_link_without_measurements_runs_at_its_bandwidth() -> None:
    link = Link("nvlink", 10**9, 1e-6, 2, 1)
    assert collective_ns("all_gather", 2 * 10**9, 2, link) == pytest.approx(10**9 + 1000, abs=1)


@pytest.mark.parametrize("collective", ["all_together", "", "copy"])
def test_unknown_collectives_are_a_bug(collective: str) -> None:
    with pytest.raises(KeyError):
        collective_ns(collective, 1, 1, H100.link(1, 1))
    with pytest.raises(KeyError):
        wire_bytes(collective, 1, 1)


# ---- measured -------------------------------------------------------------------------------------------------------
TABLES = {name: load_topology(name) for name in topology_names()}
WITH_TABLES = [name for name, machine in TABLES.items() if machine.node.fabric and machine.node.fabric.curves]


@pytest.mark.parametrize("name", WITH_TABLES)
def test_every_point_of_a_machines_table_is_the_answer_and_called_measured(name: str) -> None:
    machine = TABLES[name]
    assert machine.node.fabric is not None
    assert machine.node.fabric.curves is not None
    of_table = load_curves(machine.node.fabric.curves).by_ranks
    asked = [(collective, ranks) for collective, ranks in of_table if ranks <= machine.gpus_per_host]
    assert len(asked) >= 8
    for collective, ranks in asked:
        link, curve = machine.link(ranks, 1), of_table[collective, ranks]
        for size, ns in zip(curve.sizes, curve.times, strict=True):
            assert collective_ns(collective, size, ranks, link) == ns
            assert timing(collective, size, ranks, link) == "measured"


@pytest.mark.parametrize("name", [
    name for name, machine in TABLES.items() if machine.node.fabric and not machine.node.fabric.curves])
def test_a_machine_without_a_table_has_models_alone(name: str) -> None:
    link = TABLES[name].link(2, 1)
    for collective in COLLECTIVES:
        assert timing(collective, 2**20, 2, link) == "model"
        assert not measured_sizes(collective, 2, link)


def test_which_machines_have_tables() -> None:
    """Not those whose curves were taken over from another machine, nor L40S, whose host had a fault."""
    assert WITH_TABLES == ["dgx-a100", "dgx-a100-40gb", "dgx-b200", "dgx-b200-simumax", "dgx-b300", "dgx-h100",
                           "dgx-h200", "gb200-nvl72", "gb300-nvl72", "rtx-pro-6000"]


def test_a_measured_point_is_the_answer() -> None:
    """H100, 8 ranks, 1 MiB gathered: 17.13 us in the source's table."""
    link = MEASURED["dgx-h100"].link(8, 1)
    assert collective_ns("all_gather", 2**20, 8, link) == 17_130
    assert timing("all_gather", 2**20, 8, link) == "measured"


@pytest.mark.parametrize(("collective", "size", "group", "stride"), [
    ("all_gather", 2**29 + 1, 8, 1),  # larger than any message of the table
    ("all_gather", 511, 8, 1),
    ("all_gather", 2**20, 6, 1),  # a number of ranks without a column
    ("broadcast", 2**20, 8, 1),  # a collective without a table
    ("send_recv", 2**20, 2, 1),
    ("all_gather", 2**20, 8, 8),  # over the network
])
def test_what_was_not_measured_is_called_a_model(collective: str, size: int, group: int, stride: int) -> None:
    assert timing(collective, size, group, MEASURED["dgx-h100"].link(group, stride)) == "model"


def test_trays_of_a_domain_are_a_model_and_slower_than_one() -> None:
    nvl72 = MEASURED["gb200-nvl72"]
    inside, across = nvl72.link(4, 1), nvl72.link(4, 4)
    assert (timing("all_gather", 2**20, 4, inside), timing("all_gather", 2**20, 4, across)) == ("measured", "model")
    assert collective_ns("all_gather", 2**20, 4, inside) <= collective_ns("all_gather", 2**20, 4, across)
    assert collective_ns("all_gather", 2**20, 4, across) < collective_ns("all_gather", 2**20, 72, nvl72.link(72, 1))


def test_beyond_the_table_the_last_bandwidth_goes_on() -> None:
    link = MEASURED["dgx-h100"].link(8, 1)
    assert collective_ns("all_gather", 2**31, 8, link) == 4 * collective_ns("all_gather", 2**29, 8, link)


def test_links_in_pairs_serve_their_pair_alone() -> None:
    """Two of eight MI300X use one link of seven, four use three; behind a switch each has its whole link."""
    machine, size = load_topology("mi300x"), 2**30
    assert machine.node.nvlink is not None
    fabric = machine.node.nvlink
    for ranks, links in ((2, 1), (4, 3), (8, 7)):
        link = machine.link(ranks, 1, ranks)
        latency = fabric.latency.si + (ranks - 1) * fabric.hop_latency.si
        seconds = size * (ranks - 1) / ranks / (fabric.bus_bandwidth.all_to_all.si * links / 7) + latency
        assert collective_ns("all_to_all", size, ranks, link) == pytest.approx(seconds * 1e9, abs=2)
