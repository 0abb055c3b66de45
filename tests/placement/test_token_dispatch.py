"""Tokens sent to experts: rows of the busiest rank, and copies, by every choice of every token walked through."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from simcore.inputs.training import Capacity, Imbalance
from simcore.placement.token_dispatch import Dispatch, dispatch_of, received_per_token, sent_per_token, top_k_of
from simcore.results.report import Report
from simcore.simulate import simulate

ONE = 1 << 16
NANO = Dispatch(128, 6)


# ---- rows that experts receive ---------------------------------------------------------------------------------------
def test_rows_of_the_busiest_rank() -> None:
    assert received_per_token("balanced", 6, 8) == sent_per_token("balanced", 6) == 6 * ONE
    assert received_per_token(Imbalance(imbalance=1.5), 6, 8) == 9 * ONE
    assert sent_per_token(Imbalance(imbalance=1.5), 6) == 6 * ONE
    assert received_per_token(Capacity(capacity_factor=1.25), 4, 8) == sent_per_token(
        Capacity(capacity_factor=1.25), 4) == 5 * ONE


@pytest.mark.parametrize("ep", [1, 2])
def test_no_rank_gets_more_than_all_rows(ep: int) -> None:
    assert received_per_token(Imbalance(imbalance=100), 6, ep) == 6 * ep * ONE


def test_top_k_is_the_models() -> None:
    assert top_k_of(small.prepared("megatron")[0].graph) == 2
    assert top_k_of(small.prepared("megatron", model="llama-tiny")[0].graph) == 0


def run(framework: str, mesh: dict[str, int], routing: Any, **changes: Any) -> Report:
    report = simulate(small.scenario(framework, mesh, routing=routing, **changes), timed=False)
    assert report.status == "ok", report.problems
    return report


def peak(framework: str, mesh: dict[str, int], routing: Any, **changes: Any) -> int:
    found = run(framework, mesh, routing, **changes).peak_rank
    assert found is not None
    assert found.peak is not None
    return found.peak.allocated_bytes


@pytest.mark.parametrize("framework", ["fsdp2", "automodel", "megatron"])
def test_a_busier_rank_needs_more(framework: str) -> None:
    mesh = {"dp_shard": 4, "ep": 4}
    sizes = [peak(framework, mesh, routing, seq_len=1024) for routing in
             ("balanced", {"imbalance": 1}, {"imbalance": 1.5}, {"imbalance": 3}, {"imbalance": 4})]
    assert sizes == sorted(sizes)
    assert sizes[0] == sizes[1] < sizes[2] < sizes[3] < sizes[4]


@pytest.mark.parametrize("framework", ["fsdp2", "automodel", "megatron"])
def test_a_token_goes_to_an_expert_once(framework: str) -> None:
    """Two of eight experts a token: the fullest has at most four times the mean."""
    report = simulate(small.scenario(framework, {"dp_shard": 8, "ep": 8}, routing={"imbalance": 4.5}))
    assert report.status == "error"
    assert "expected at most 4, got 4.5" in report.problems[0].message


def test_a_dense_model_routes_nothing() -> None:
    report = simulate(small.scenario("fsdp2", model="llama-tiny", routing={"imbalance": 2}))
    assert "a model without experts routes no tokens" in report.problems[0].message


def test_loads_of_ranks_are_bounded_by_their_number() -> None:
    """A rank alone has its own rows, and of two the fullest has at most twice the mean; KempnerForge's are experts'."""
    kempner: dict[str, Any] = {"model": "mixtral-8x7b", "implementation": "kempnerforge", "seq_len": 1024}
    asked: dict[str, tuple[tuple[str, dict[str, int], Any], dict[str, Any]]] = {
        "imbalance: changes nothing where each rank has all experts": (("megatron", {"dp_shard": 2}, {
            "imbalance": 2}), {}),
        "imbalance: expected at most 2 (mesh.ep), got 2.5": (("automodel", {"dp_shard": 4, "ep": 2}, {
            "imbalance": 2.5}), {}),
        "": (("fsdp2", {"dp_shard": 2}, {"imbalance": 1}), {}),
        "imbalance: expected at most 4, got 5": (("fsdp2", {"dp_shard": 2}, {"imbalance": 5}), kempner)}
    found = {}
    for words, ((framework, mesh, routing), changes) in asked.items():
        report = simulate(small.scenario(framework, mesh, routing=routing, **changes), timed=False)
        told = " ".join(problem.message for problem in report.problems)
        if words not in told or bool(words) != bool(told):
            found[words] = told
    assert found == {}
    assert peak("fsdp2", {"dp_shard": 2}, {"imbalance": 4}, **kempner) > peak(
        "fsdp2", {"dp_shard": 2}, "balanced", **kempner)



def test_a_capacity_of_one_is_balance_and_changes_what_is_sent() -> None:
    mesh = {"dp_shard": 4, "ep": 4}
    assert peak("megatron", mesh, {"capacity_factor": 1.0}) == peak("megatron", mesh, "balanced")
    sent = [sum(row.payload_bytes for row in run("megatron", mesh, {"capacity_factor": factor}).ranks[0].traffic
                if row.collective == "all_to_all") for factor in (1.0, 2.0)]
    assert sent[1] == 2 * sent[0] > 0


def test_without_padding_a_capacity_only_cuts() -> None:
    """Experts that are loaded alike lose no token to a capacity above their load, and half of them to half of it."""
    mesh = {"dp_shard": 4, "ep": 4}
    loose, tight = ({"capacity_factor": factor, "pad": False} for factor in (2.0, 0.5))
    assert peak("megatron", mesh, loose) == peak("megatron", mesh, "balanced")
    assert peak("megatron", mesh, tight) == peak("megatron", mesh, tight | {"pad": True})
    assert peak("megatron", mesh, tight) < peak("megatron", mesh, loose)
    assert peak("megatron", mesh, loose) < peak("megatron", mesh, loose | {"pad": True})


@pytest.mark.parametrize("framework", ["fsdp2", "automodel"])
def test_frameworks_without_a_capacity_refuse_one(framework: str) -> None:
    report = simulate(small.scenario(framework, {"dp_shard": 4, "ep": 4}, routing={"capacity_factor": 1.0}))
    assert report.status == "illegal"
    assert "capacity" in report.problems[0].message


# ---- copies that cross ranks -----------------------------------------------------------------------------------------
def walked(dispatch: Dispatch, per_node: int, num_nodes: int) -> tuple[list[int], list[int], int]:
    """Every choice once from every rank: copies sent and received by [over NVLink, over the network], and payload."""
    group, sent, received, payload = per_node * num_nodes, [0, 0], [0, 0], 0
    for home in range(group):
        for choice in combinations(range(dispatch.num_experts), dispatch.top_k):
            wanted = {expert * group // dispatch.num_experts for expert in choice}
            payload += len(wanted)
            for node in {rank // per_node for rank in wanted}:
                door = node * per_node + home % per_node  # where it enters the node
                sent[1] += door // per_node != home // per_node
                received[1] += door != home
                sent[0] += sum(rank != door for rank in wanted if rank // per_node == node)
                received[0] += len({rank for rank in wanted if rank // per_node == node} - {door})
    return sent, received, payload


@settings(deadline=None, max_examples=25)
@given(per_node=st.sampled_from([1, 2, 3, 4]), num_nodes=st.sampled_from([1, 2, 3]), local=st.sampled_from([1, 2]),
       top_k=st.integers(1, 3))
def test_copies_are_those_of_all_choices(per_node: int, num_nodes: int, local: int, top_k: int) -> None:
    group = per_node * num_nodes
    dispatch = Dispatch(group * local, min(top_k, group * local))
    sent, received, payload = walked(dispatch, per_node, num_nodes)
    assert sent == received
    assert payload == pytest.approx(group * comb(group * local, dispatch.top_k) * dispatch.places(group))
    assert [n / payload for n in sent] == pytest.approx(dispatch.crossing(group, num_nodes))


def test_six_choices_meet_four_or_five_of_eight_ranks() -> None:
    """8 (1 - C(112, 6) / C(128, 6))."""
    assert NANO.places(8) == pytest.approx(4.471, abs=0.001)
    assert NANO.crossing(8, 1) == pytest.approx((7 / 8, 0))


@given(num_nodes=st.sampled_from([2, 4, 8, 16]))
def test_a_token_crosses_to_a_node_once_however_many_of_its_ranks_want_it(num_nodes: int) -> None:
    """So it never sends more over the network than one copy for each rank, and with one rank a node as much."""
    group = 8 * num_nodes
    _, network = NANO.crossing(group, num_nodes)
    assert network * NANO.places(group) == pytest.approx(NANO.places(num_nodes) * (num_nodes - 1) / num_nodes)
    assert network < (group - 8) / group
    assert NANO.crossing(num_nodes, num_nodes) == pytest.approx((0, (num_nodes - 1) / num_nodes))


@pytest.mark.parametrize(("name", "options", "has_one"), [
    ("megatron", {"moe_token_dispatcher_type": "alltoall"}, False),
    ("megatron", {"moe_token_dispatcher_type": "flex"}, True),
    ("automodel", {"dispatcher": "deepep"}, True),
    ("automodel", {"dispatcher": "torch"}, False),
])
def test_who_sends_one_copy_a_rank(name: str, options: dict[str, str], has_one: bool) -> None:
    job, table = small.prepared(name, {"dp_shard": 4, "ep": 4}, options=options)
    assert (dispatch_of(job.graph, table.libraries) is not None) == has_one


def test_a_dense_model_has_none() -> None:
    job, table = small.prepared("automodel", {"dp_shard": 4}, model="llama-tiny")
    assert dispatch_of(job.graph, table.libraries) is None
