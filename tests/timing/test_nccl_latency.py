"""Steps of a collective over nodes, as NCCL's own tables count them (nccl 5067397c `graph/tuning.cc`)."""

from __future__ import annotations

import pytest

from simcore.hardware.topology import load_topology
from simcore.timing.collective import collective_ns
from simcore.timing.nccl_latency import over_nodes_s

US = 1e-6


@pytest.mark.parametrize(("collective", "ranks", "nodes", "busy_us", "us"), [
    ("all_gather", 512, 64, 0, 14.0 + 448 * 1.9 + 63 * 4.0),  # LL128
    ("reduce_scatter", 16, 2, 1000, 8.4 + 14 * 3.4 + 14.0 + 1000),  # Simple: 0.08 of many bytes is more than its steps
    ("all_reduce", 512, 64, 0, 14.0 + 2 * (7 * 1.25 + 6 * 8.5)),  # a tree
    ("all_reduce", 16, 2, 0, 14.0 + 2 * (7 * 1.25 + 8.5)),
    ("all_gather", 64, 64, 0, 8.0 + 64 * 2.8 + 6 * 4.0),  # PAT
    ("all_gather", 4, 4, 9000, 8.4 + 3 * 14.0 + 9000),  # the ring, where PAT's bandwidth costs more
    ("all_to_all", 512, 64, 5, 0), ("send_recv", 2, 2, 5, 0)])
def test_ways_of_nccl(collective: str, ranks: int, nodes: int, busy_us: float, us: float) -> None:
    assert over_nodes_s(collective, ranks, nodes, busy_us * US) == pytest.approx(us * US, rel=1e-9)


def test_a_small_gather_over_many_nodes_waits_for_its_steps() -> None:
    """For 64 nodes 30 us + 6 us sqrt(nodes), which two nodes take, would be 13 times too short."""
    h100 = load_topology("dgx-h100")
    few, many = (collective_ns("all_gather", 2**20, n, h100.link(n, 1)) for n in (16, 512))
    assert few == pytest.approx(50e3, rel=0.15)
    assert many == pytest.approx(1118e3, rel=0.01)
    reduced = collective_ns("all_reduce", 2**20, 512, h100.link(512, 1))
    assert reduced < 0.15 * many
