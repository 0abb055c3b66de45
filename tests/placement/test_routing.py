"""Rows of the busiest rank, and what they do to memory and traffic."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.inputs.training import Capacity, Imbalance
from simcore.placement.routing import received_per_token, sent_per_token, top_k_of
from simcore.results.report import Report
from simcore.simulate import simulate

ONE = 1 << 16


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


def run(framework: str, mesh: dict[str, int], routing: Any, **given: Any) -> Report:
    report = simulate(small.scenario(framework, mesh, routing=routing, **given), timed=False)
    assert report.status == "ok", report.problems
    return report


def peak(framework: str, mesh: dict[str, int], routing: Any, **given: Any) -> int:
    found = run(framework, mesh, routing, **given).peak_rank
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


def test_alone_a_rank_has_its_own_rows() -> None:
    assert peak("megatron", {"dp_shard": 2}, {"imbalance": 2}) == peak("megatron", {"dp_shard": 2}, "balanced")


def test_a_capacity_of_one_is_balance_and_changes_what_is_sent() -> None:
    mesh = {"dp_shard": 4, "ep": 4}
    assert peak("megatron", mesh, {"capacity_factor": 1.0}) == peak("megatron", mesh, "balanced")
    sent = [sum(row.payload_bytes for row in run("megatron", mesh, {"capacity_factor": factor}).ranks[0].traffic
                if row.collective == "all_to_all") for factor in (1.0, 2.0)]
    assert sent[1] == 2 * sent[0] > 0


@pytest.mark.parametrize("framework", ["fsdp2", "automodel"])
def test_frameworks_without_a_capacity_refuse_one(framework: str) -> None:
    report = simulate(small.scenario(framework, {"dp_shard": 4, "ep": 4}, routing={"capacity_factor": 1.0}))
    assert report.status == "illegal"
    assert "capacity" in report.problems[0].message
