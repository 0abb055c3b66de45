"""Names and sums of a report: verdict, capacity, assumptions, communicators, rates."""

from __future__ import annotations

import json

import pytest

import small
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.results.report import Report
from simcore.simulate import simulate


def limited(**limits: object) -> Scenario:
    data = {"name": "x", "model": small.TINY, "framework": "fsdp2", "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64}, "limits": limits}
    return parse_scenario(parse_document(json.dumps(data), "x.json"))


@pytest.mark.parametrize(("limits", "verdict"), [({}, "fits"), ({"usable_memory": "1 MiB"}, "oom"),
                                                 ({"usable_memory": "79 GiB", "max_fill": 1e-6}, "oom")])
def test_the_verdict_compares_the_worst_rank_with_the_limit(limits: dict[str, object], verdict: str) -> None:
    report = simulate(limited(**limits))
    assert report.verdict == verdict
    assert report.headroom_bytes is not None
    assert (report.headroom_bytes >= 0) == (verdict == "fits")


def test_headroom_is_what_is_left() -> None:
    report = simulate(limited(usable_memory="10 GiB", max_fill=0.5))
    assert report.capacity_bytes == 10 * 2**30
    assert report.peak_rank is not None
    assert report.peak_rank.peak is not None
    assert report.headroom_bytes == 5 * 2**30 - report.peak_rank.peak.device_bytes


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_a_peak_is_its_categories_and_its_phases(name: str) -> None:
    for rank in simulate(small.scenario(name, {"dp_shard": 4, "ep": 2}), timed=False).ranks:
        assert rank.peak is not None
        assert sum(rank.peak.by_category.values()) == rank.peak.allocated_bytes == max(rank.peak.by_phase.values())
        assert rank.peak.allocated_bytes <= rank.peak.reserved_bytes < rank.peak.device_bytes
        assert [o.bytes for o in rank.peak.top] == sorted((o.bytes for o in rank.peak.top), reverse=True)
        assert all(o.bytes <= rank.peak.by_category[o.category] for o in rank.peak.top)


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_after_a_step_a_rank_holds_what_it_rests_with(name: str) -> None:
    """Parameters and states, gradients where they persist, workspaces; beside them only what alignment adds."""
    nothing_ahead = {"log_params_norm": True} if name == "megatron_fsdp" else {}
    for rank in simulate(small.scenario(name, {"dp_shard": 4, "ep": 2}, options=nothing_ahead), timed=False).ranks:
        rests = sum(at.params_bytes + at.optimizer_bytes + at.grads_bytes * rank.grads_persist
                    for at in rank.at_rest.values())
        assert rank.peak is not None
        assert rank.end_bytes is not None
        rests += rank.peak.by_category.get("workspace", 0)
        assert rests <= rank.end_bytes < rests + 2**21
        assert rank.end_bytes < rank.peak.allocated_bytes


def test_every_default_that_was_taken_is_listed() -> None:
    defaults = {a.what: a.value for a in simulate(small.scenario("fsdp2")).assumptions if a.kind == "default"}
    assert defaults["training.precision.params"] == "fp32"
    given = simulate(small.scenario("fsdp2", precision={"params": "bf16"})).assumptions
    assert "training.precision.params" not in {a.what for a in given}
    assert all(a.source for a in given)


def test_communicators_of_more_than_one_rank() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 4, "tp": 2, "ep": 2, "etp": 1}), timed=False)
    assert {c.axis: c.size for c in report.communicators} == {"tp": 2, "dp_cp": 4, "ep": 2, "expert_dp": 4}


def test_coordinates_name_the_axes_that_are_there() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_replicate": 2, "dp_shard": 3}), timed=False)
    assert [r.coordinates["dp_shard"] for r in report.ranks] == ["0-1", 2]
    assert "tp" not in report.ranks[0].coordinates


def test_rates_are_work_over_time() -> None:
    def tokens(report: Report) -> float:
        assert report.time is not None
        return report.time.tokens_per_s_per_gpu * report.time.step_s

    mesh = {"dp_shard": 4, "cp": 2}
    assert tokens(simulate(small.scenario("megatron", mesh, microbatches=3))) == pytest.approx(3 * 4 * 64 / 8)
    assert tokens(simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=3))) == pytest.approx(3 * 64)


def test_model_flops_do_not_count_recompute() -> None:
    """Model FLOPs of a step are the same however long it takes."""
    work = []
    for recompute in ("none", "full"):
        time = simulate(small.scenario("fsdp2", {"dp_shard": 2}, recompute=recompute)).time
        assert time is not None
        work.append(time.model_tflops_per_gpu * time.step_s)
        assert 0 < time.mfu < 1
    assert work[0] == pytest.approx(work[1])


def test_flat_shards_are_class_means_and_say_so() -> None:
    assert all(r.apportioned for r in simulate(small.scenario("megatron", {"dp_shard": 3}), timed=False).ranks)
    assert not any(r.apportioned for r in simulate(small.scenario("fsdp2", {"dp_shard": 3}), timed=False).ranks)
    assert not simulate(small.scenario("megatron", {"dp_shard": 3}), rank=1).ranks[0].apportioned
