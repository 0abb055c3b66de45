"""Routes of a job's collectives: links, nodes, and messages between stages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import small
from simcore.hardware.topology import load_topology
from simcore.placement.mesh import IntArray
from simcore.timing.collective import crossing
from simcore.timing.routes import HOST_WAYS, Routes


def routes(name: str, mesh: dict[str, int], topology: str = "dgx-h100", **given: Any) -> Routes:
    return Routes(*small.prepared(name, mesh, **given), load_topology(topology))


def ranks(*numbers: int) -> IntArray:
    return np.array(numbers, dtype=np.int64)


def test_an_axis_takes_the_link_of_its_groups() -> None:
    job_routes = routes("megatron", {"tp": 2, "dp_shard": 16})
    inside, across = job_routes.of("all_gather", "tp"), job_routes.of("reduce_scatter", "dp_cp")
    assert (inside.link.name, inside.group_size, len(inside.measured) > 0) == ("nvlink", 2, True)
    assert (across.link.name, across.group_size, len(across.measured)) == ("network", 16, 0)
    assert across.ns(2**30) > inside.ns(2**30)


def test_only_tokens_for_experts_are_dispatched() -> None:
    job_routes = routes("automodel", {"dp_shard": 16, "ep": 8}, options={"dispatcher": "deepep"})
    assert job_routes.of("all_to_all", "ep").dispatch is not None
    assert job_routes.of("all_to_all", "dp_shard_cp").dispatch is None
    assert job_routes.of("all_gather", "ep").dispatch is None


def test_tokens_take_two_levels_where_experts_span_nodes() -> None:
    """Expert tensor parallelism takes every other rank, so 8 ranks with experts lie in two nodes."""
    flex = {"moe_token_dispatcher_type": "flex"}
    near = routes("megatron", {"dp_shard": 8, "ep": 8}, options=flex)
    far = routes("megatron", {"dp_shard": 8, "tp": 2, "ep": 8, "etp": 2}, options=flex)
    assert (near.of("all_to_all", "ep").algorithm, far.of("all_to_all", "ep").algorithm) == ("pairwise", "two_level")
    inside = near.crossing("all_to_all", "ep", ranks(0))
    assert (inside.network, inside.wire) == (0, 7 / 8)
    assert 0 < far.crossing("all_to_all", "ep", ranks(0)).network < 1 / 2


LAYERS = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 24}}


@pytest.mark.parametrize(("stages", "tp", "chunks", "away"), [
    (4, 4, 1, [0, 1 / 2, 1 / 2, 0]),  # two stages a node: 0 and 1, 2 and 3
    (4, 8, 1, [1, 1, 1, 1]),  # a stage a node
    (4, 2, 1, [0, 0, 0, 0]),  # all in one node
    (4, 4, 3, [2 / 5, 1 / 2, 1 / 2, 2 / 5]),  # round the ring: three up, two to the last stage and so on
])
def test_messages_leave_the_node_where_the_neighbour_is_in_another(stages: int, tp: int, chunks: int,
                                                                  away: list[float]) -> None:
    job_routes = routes("megatron", {"pp": stages, "tp": tp}, model=LAYERS, microbatches=8,
                   pipeline={"virtual_stages": chunks})
    for stage, share in enumerate(away):
        told = job_routes.crossing("send_recv", "pp", ranks(stage * tp))
        assert tuple(told) == pytest.approx((1, share))


def test_a_single_stage_sends_nothing_anywhere() -> None:
    """Two cards of two hosts: there are no four ranks for two stages."""
    job_routes = routes("fsdp2", {"dp_shard": 2}, topology="dgx-spark", model="llama-tiny")
    assert (job_routes.of("send_recv", "pp").link.name, job_routes.of("send_recv", "pp").ns(2**20)) == ("self", 0)
    assert job_routes.crossing("send_recv", "pp", ranks(0)) == (0, 0)


def test_domains_that_are_not_taken_whole_are_nodes_of_what_is_taken() -> None:
    """256 GPUs of GB200 are 64 in each of four domains, so four stages of 64 lie in one each."""
    job_routes = routes("megatron", {"pp": 4, "dp_shard": 64}, topology="gb200-nvl72", model=LAYERS)
    assert job_routes.of("all_gather", "dp_cp").link.name == "nvlink"
    assert [job_routes.crossing("send_recv", "pp", ranks(stage * 64)).network for stage in range(4)] == [1, 1, 1, 1]
    within = routes("megatron", {"pp": 8, "dp_shard": 32}, topology="gb200-nvl72", model=LAYERS)
    shares = [within.crossing("send_recv", "pp", ranks(stage * 32)).network for stage in range(4)]
    assert shares == [0, 1 / 2, 1 / 2, 1 / 2]


def test_messages_of_a_ring_go_to_the_next_rank() -> None:
    """Two of its ranks stand in each node, so half of them have their next rank in the other."""
    job_routes = routes("megatron", {"cp": 4, "tp": 4}, model="llama-tiny")
    assert [job_routes.crossing("send_recv", "cp", ranks(rank)).network for rank in (0, 4, 8, 12)] == [1 / 2] * 4


def test_a_class_has_the_mean_of_its_ranks_where_stages_straddle_nodes() -> None:
    """Stages of seven on nodes of eight: rank 0 has its neighbour 7 in its node, ranks 1 to 6 theirs in the next."""
    job_routes = routes("automodel", {"pp": 2, "dp_shard": 7}, model="llama-tiny", microbatches=2)
    assert job_routes.crossing("send_recv", "pp", np.arange(7)).network == pytest.approx(6 / 7)
    assert [job_routes.crossing("send_recv", "pp", ranks(rank)).network for rank in (0, 1, 7, 8)] == [0, 1, 0, 1]


def test_rings_that_straddle_nodes_differently_are_told_as_their_mean() -> None:
    """Rings of three on nodes of eight: of 0-2 none leaves, of 6-8 two do."""
    job_routes = routes("megatron", {"cp": 3, "dp_shard": 8}, model="llama-tiny", seq_len=96)
    rings = [job_routes.crossing("send_recv", "cp", ranks(rank)).network for rank in range(0, 24, 3)]
    assert rings == pytest.approx([0, 0, 2 / 3, 0, 0, 2 / 3, 0, 0])
    assert job_routes.crossing("send_recv", "cp", np.arange(24)).network == pytest.approx(sum(rings) / 8)


def test_other_collectives_cross_as_their_group_does() -> None:
    job_routes = routes("megatron", {"tp": 2, "dp_shard": 16})
    route = job_routes.of("all_gather", "dp_cp")
    assert job_routes.crossing("all_gather", "dp_cp", ranks(5)) == crossing("all_gather", 16, route.link)


def test_copies_go_over_the_host_link_each_way_at_its_own_pace() -> None:
    job_routes = routes("fsdp2", {"dp_shard": 2})
    down, up = (job_routes.of("copy", way) for way in HOST_WAYS)
    assert (down.link.name, down.group_size, down.leaves, down.algorithm) == ("host", 1, True, "direct")
    assert up.ns(10**10) == math.ceil(1e10 / 55.4e9 * 1e9 + 5000)
    assert down.ns(10**10) == math.ceil(1e10 / 55.1e9 * 1e9 + 5000)
    assert down.ns(0) == 0
    assert job_routes.crossing("copy", "to_host", ranks(0)) == (1.0, 0.0)
