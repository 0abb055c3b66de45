"""Reports of routing drawn at random: quantiles, the chance to run out of memory, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.inputs.training import Imbalance
from simcore.placement.token_dispatch import received_per_token
from simcore.results.report import Report
from simcore.simulate import check, simulate

MESH = {"dp_shard": 4, "ep": 4}
ROUTING = {"seed": 1, "draws": 50, "concentration": 1.0}
FOUR_LAYERS = {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 4}}


def run(framework: str, mesh: dict[str, int], routing: Any, **given: Any) -> Report:
    report = simulate(small.scenario(framework, mesh, routing=routing, **{"seq_len": 1024} | given), timed=False)
    assert report.status == "ok", report.problems
    return report


@pytest.mark.parametrize(("framework", "given"), [
    ("megatron", {}), ("megatron", {"recompute": "full"}), ("megatron", {"recompute": ["moe_act"]}),
    ("megatron", {"options": {"moe_token_dispatcher_type": "allgather"}}),
    ("automodel", {"options": {"dispatcher": "torch"}}),
])
@pytest.mark.parametrize("factor", [1.0, 1.3, 2.71, 4.0])
def test_rows_that_are_alike_in_all_layers_are_an_imbalance_to_the_byte(framework: str, given: dict[str, Any],
                                                                        factor: float, monkeypatch: Any) -> None:
    received = received_per_token(Imbalance(imbalance=factor), 2, 4) * 1024 >> 16
    monkeypatch.setattr("simcore.simulation.random_routing.sample_received_rows", lambda loads, layer: np.concatenate(
        [np.full((1, 1, 1, 4), rows) for rows in (received, 2, 8192)], axis=1))
    found = run(framework, MESH, {"seed": 0, "draws": 3}, **given).drawn
    assert found is not None
    assert found.exact
    assert found.hottest.allocated_bytes.p50 == _peak(run(framework, MESH, {"imbalance": factor}, **given))


def test_a_draw_needs_no_cache_either() -> None:
    """With ep 1 every draw is the balanced step, device bytes too."""
    report = run("automodel", {"dp_shard": 4}, ROUTING)
    assert report.drawn is not None
    peak = report.ranks[0].peak
    assert peak is not None
    assert report.drawn.hottest.device_bytes.p50 == peak.device_bytes
    told, others = (next(one.value for one in asked.assumptions if one.what == "training.routing") for asked in (
        report, run("automodel", MESH, ROUTING)))
    assert "every draw is the balanced step" in told
    assert "every draw" not in others


def test_a_pipeline_holds_several_microbatches_of_their_own_rows() -> None:
    report = run("megatron", {"pp": 2, "dp_shard": 8, "ep": 8}, ROUTING, microbatches=4, model=FOUR_LAYERS)
    first, last = report.ranks
    assert first.drawn is not None
    assert last.drawn is not None
    assert report.drawn is not None
    assert [row.layer for row in report.drawn.received] == [f"model.layers.{n}" for n in range(4)]
    assert report.drawn.hottest.allocated_bytes.max == max(
        rank.drawn.allocated_bytes.max for rank in report.ranks if rank.drawn)
    assert all(rank.drawn.allocated_bytes.p50 < rank.drawn.allocated_bytes.max for rank in report.ranks if rank.drawn)


def test_a_stage_without_experts_is_the_same_in_all_draws() -> None:
    model = {"config": "deepseek-v2-lite", "overrides": {"num_hidden_layers": 2, "first_k_dense_replace": 1}}
    report = run("megatron", {"pp": 2, "dp_shard": 4, "ep": 4}, ROUTING, microbatches=2, model=model)
    dense, routed = report.ranks
    assert dense.peak is not None
    assert dense.drawn is not None
    assert routed.drawn is not None
    assert set(dense.drawn.allocated_bytes.model_dump().values()) == {dense.peak.allocated_bytes}
    assert routed.drawn.allocated_bytes.p50 < routed.drawn.allocated_bytes.max


def test_one_rank_is_drawn_alone() -> None:
    asked = small.scenario("megatron", MESH, routing=ROUTING, seq_len=1024)
    report = simulate(asked, rank=2)
    assert report.drawn is not None
    assert report.ranks[0].drawn is not None
    assert report.drawn.hottest.allocated_bytes == report.ranks[0].drawn.allocated_bytes


def test_folded_ranks_are_drawn_as_if_each_was_alone() -> None:
    asked = small.scenario("automodel", {"dp_shard": 8, "ep": 4}, routing=ROUTING, seq_len=512)
    folded, single = (simulate(asked, timed=False, fold=fold) for fold in (True, False))
    assert len(folded.ranks) < len(single.ranks) == 8
    assert folded.drawn == single.drawn


def test_of_a_large_job_some_groups_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = {"dp_shard": 16, "ep": 4}
    every = run("megatron", mesh, ROUTING).drawn
    most = 50 * 4 * 2 * 2  # draws, ranks of a group, MoE layers, two groups
    monkeypatch.setattr("simcore.simulation.random_routing._MOST_VALUES", most)
    some = run("megatron", mesh, ROUTING)
    assert every is not None
    assert some.drawn is not None
    assert (every.num_groups, some.drawn.num_groups) == (4, 2)
    assert some.drawn.hottest.allocated_bytes.p50 <= every.hottest.allocated_bytes.p50
    assert any("2 of 4 expert groups" in a.value for a in some.assumptions)


@pytest.mark.parametrize("framework", ["automodel", "megatron"])
def test_draws_lie_between_the_imbalances_of_their_rows(framework: str) -> None:
    found = run(framework, MESH, ROUTING).drawn
    assert found is not None
    factors = [q / found.balanced_rows for q in (min(r.received.p50 for r in found.received),
                                                 max(r.received.max for r in found.received))]
    low, high = (_peak(run(framework, MESH, {"imbalance": max(1.0, f)})) for f in factors)
    assert low < found.hottest.allocated_bytes.max <= high


def _peak(report: Report) -> int:
    assert report.peak_rank is not None
    assert report.peak_rank.peak is not None
    return report.peak_rank.peak.allocated_bytes


@pytest.mark.parametrize("pp", [1, 2])
def test_alone_a_group_receives_what_is_balanced(pp: int) -> None:
    report = run("megatron", {"pp": pp, "dp_shard": 2}, ROUTING, microbatches=3, model=FOUR_LAYERS)
    assert report.drawn is not None
    for rank in report.ranks:
        assert rank.peak is not None
        assert rank.drawn is not None
        assert set(rank.drawn.allocated_bytes.model_dump().values()) == {rank.peak.allocated_bytes}
        assert set(rank.drawn.device_bytes.model_dump().values()) == {rank.peak.device_bytes}


def test_more_microbatches_are_more_chances() -> None:
    few, many = (run("megatron", MESH, ROUTING, microbatches=count).drawn for count in (1, 8))
    assert few is not None
    assert many is not None
    assert few.hottest.allocated_bytes.p50 < many.hottest.allocated_bytes.p50


def test_the_same_seed_is_the_same_answer_and_popularity_matters() -> None:
    one, again, other, alike = (run("automodel", MESH, routing).drawn for routing in
                                (ROUTING, ROUTING, ROUTING | {"seed": 2}, {"seed": 1, "draws": 50}))
    assert one == again != other
    assert one is not None
    assert alike is not None
    assert alike.hottest.allocated_bytes.max < one.hottest.allocated_bytes.p50


def test_the_chance_counts_draws_that_do_not_fit() -> None:
    found = run("megatron", MESH, ROUTING).drawn
    assert found is not None
    assert found.oom_probability == 0
    limit = found.hottest.device_bytes.p50
    asked = small.scenario("megatron", MESH, routing=ROUTING, seq_len=1024)
    tight = asked.model_copy(update={"limits": asked.limits.model_copy(update={"usable_memory": f"{limit} B"})})
    report = simulate(tight, timed=False)
    assert report.drawn is not None
    assert 0 < report.drawn.oom_probability <= 0.5
    assert report.verdict == "unsure"
    assert report.band_bytes == report.drawn.band_bytes
    low, high = report.drawn.band_bytes or (0, 0)
    assert low <= limit < high
    assert report.headroom_bytes == limit - found.hottest.device_bytes.max < 0


def test_what_was_drawn_is_an_assumption() -> None:
    told = next(a for a in run("megatron", {"dp_shard": 8, "ep": 4}, ROUTING).assumptions
                if a.what == "training.routing")
    assert told.kind == "assumed"
    assert "Dirichlet(1), seed 1, 50 steps of 1 of 1 microbatches, 2 of 2 expert groups" in told.value


def test_a_stand_in_for_grouped_products_is_refused() -> None:
    report = check(small.scenario("fsdp2", MESH, routing=ROUTING))
    assert report.status == "error"
    assert "grouped_mm" in report.problems[0].message
    assert run("fsdp2", {"dp_shard": 4}, ROUTING, options={"experts_implementation": "grouped_mm"}).drawn is not None


def test_a_model_without_experts_has_no_routing() -> None:
    report = check(small.scenario("megatron", {"dp_shard": 4}, model="llama-tiny", routing=ROUTING))
    assert report.problems[0].where == "small.json:1"
    assert "without experts" in report.problems[0].message
