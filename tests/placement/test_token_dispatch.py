"""Copies of tokens: every choice of every token walked through, over nodes."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from simcore.placement.token_dispatch import Dispatch, dispatch_of

NANO = Dispatch(128, 6)


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
