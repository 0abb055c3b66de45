"""Collectives: bytes on the wire, and how long they take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collective import COLLECTIVES, collective_ns, timing, wire_bytes
from simcore.topology import Link, Topology, load_topology


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
    """The same sum as the scripts under tests/truth make it."""
    return round(size * (2 * (group - 1) / group if collective == "all_reduce" else (group - 1) / group))


@unhurried
@given(collective=collectives.filter(lambda name: name != "send_recv"), size=payloads, group=st.integers(1, 200_000))
def test_wire_bytes_are_those_of_the_traces(collective: str, size: int, group: int) -> None:
    assert wire_bytes(collective, size, group) == counted_by_the_trace(collective, size, group)


def test_a_message_is_all_wire() -> None:
    assert wire_bytes("send_recv", 12345, 4) == 12345
    assert wire_bytes("send_recv", 12345, 1) == 0


@unhurried
@given(chunk=st.integers(0, 2**24), group=st.integers(2, 64), reduce_too=st.booleans())
def test_a_ring_sends_what_it_receives(chunk: int, group: int, reduce_too: bool) -> None:
    """Walk the ring: in each of n-1 rounds each rank passes one chunk to its right, twice over for an all-reduce."""
    sent, received = [0] * group, [0] * group
    for _ in range((2 if reduce_too else 1) * (group - 1)):
        for rank in range(group):
            sent[rank] += chunk
            received[(rank + 1) % group] += chunk
    expected = wire_bytes("all_reduce" if reduce_too else "all_gather", chunk * group, group)
    assert set(sent) == set(received) == {expected}


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
