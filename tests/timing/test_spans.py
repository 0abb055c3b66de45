"""Streams over time: spans are what the timeline did, in parts that add up to those of the report."""

from __future__ import annotations

import itertools

import pytest

import small
from simcore.results.detail import Span
from simcore.results.report import Report
from simcore.simulate import simulate

PARTS = {"forward": "forward", "loss": "forward", "backward": "backward", "recompute": "backward",
         "optimizer": "optimizer"}


def closeup(framework: str, mesh: dict[str, int], microbatches: int) -> Report:
    return simulate(small.scenario(framework, mesh, microbatches=microbatches), detail=True)


def of_worst(made: Report) -> tuple[Span, ...]:
    assert made.detail is not None
    assert made.time is not None
    return next(detail.spans for rank, detail in zip(made.ranks, made.detail.classes, strict=True)
                if rank.ranks == made.time.ranks)


CASES = [("fsdp2", {"dp_shard": 8}, 1), ("automodel", {"dp_shard": 4, "ep": 2}, 2), ("megatron", {"dp_shard": 4}, 2),
         ("megatron", {"dp_shard": 2, "tp": 2}, 1), ("automodel", {"dp_shard": 2, "pp": 5}, 5)]


@pytest.mark.parametrize(("framework", "mesh", "microbatches"), CASES)
def test_the_compute_lane_adds_up_to_the_parts_of_the_step(
        framework: str, mesh: dict[str, int], microbatches: int) -> None:
    report = closeup(framework, mesh, microbatches)
    assert report.detail is not None
    assert report.time is not None
    if report.detail.written_out < report.detail.num_microbatches:
        pytest.skip("some microbatches are not written out")
    sums: dict[str, float] = {}
    covered = 0.0
    for span in of_worst(report):
        if span.lane == "compute":
            sums[PARTS.get(span.kind, span.kind)] = sums.get(PARTS.get(span.kind, span.kind), 0) + (
                span.end_s - span.start_s)
            covered = max(covered, span.end_s)
    waits = sum(sums.get(kind, 0) for kind in ("communication", "bubble", "host"))
    for part in ("communication", "bubble"):
        assert sums.get(part, 0.0) == pytest.approx(report.time.parts[part], abs=1e-9 * len(of_worst(report)))
    assert covered == pytest.approx(report.detail.end_s)
    # Kernels are drawn with what waits in their midst, so they are at least as long as they take alone.
    kernels = sum(report.time.parts[part] for part in ("forward", "backward", "optimizer"))
    assert kernels <= sum(sums[part] for part in set(PARTS.values()) if part in sums) + 1e-7
    assert waits < covered


@pytest.mark.parametrize(("framework", "mesh", "microbatches"), CASES)
def test_collectives_follow_each_other_on_a_lane(framework: str, mesh: dict[str, int], microbatches: int) -> None:
    lanes: dict[str, list[Span]] = {}
    for span in of_worst(closeup(framework, mesh, microbatches)):
        lanes.setdefault(span.lane, []).append(span)
    assert next(iter(lanes)) == "compute"
    for lane, spans in lanes.items():
        assert [s.start_s for s in spans] == sorted(s.start_s for s in spans)
        if lane != "compute":
            assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(spans))
            assert all(0 <= s.exposed_s <= s.end_s - s.start_s + 1e-12 for s in spans)


def test_what_is_waited_for_is_what_the_report_calls_exposed() -> None:
    report = closeup("fsdp2", {"dp_shard": 8}, 1)
    assert report.time is not None
    exposed = sum(span.exposed_s for span in of_worst(report))
    assert exposed == pytest.approx(report.time.exposed_communication_s, rel=1e-6)
    assert exposed > 0


def test_a_stage_that_waits_for_another_shows_a_bubble() -> None:
    report = closeup("automodel", {"dp_shard": 2, "pp": 5}, 5)
    assert report.detail is not None
    last = report.detail.classes[-1].spans
    bubble = next(span for span in last if span.kind == "bubble")
    first_kernel = min(span.start_s for span in last if span.kind == "forward")
    assert bubble.start_s < bubble.end_s <= first_kernel
    assert not any(span.kind == "bubble" for span in of_worst(closeup("fsdp2", {"dp_shard": 8}, 1)))


def test_many_spans_are_drawn_together_and_lose_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    report = closeup("fsdp2", {"dp_shard": 8}, 2)
    monkeypatch.setattr("simcore.simulation.detail.MAX_SPANS", 60)
    monkeypatch.setattr("simcore.simulation.detail._FEWEST", 1)
    few = closeup("fsdp2", {"dp_shard": 8}, 2)
    assert len(of_worst(few)) <= 60 < len(of_worst(report))
    assert max(span.end_s for span in of_worst(few)) == max(span.end_s for span in of_worst(report))
    assert sum(span.count for span in of_worst(few)) == len(of_worst(report))


def test_ends_of_one_call_have_one_name_in_all_classes() -> None:
    report = closeup("fsdp2", {"dp_shard": 3}, 1)
    assert report.detail is not None
    assert len(report.ranks) > 1
    named = [{span.meets: (span.kind, span.label, span.layer, span.end_s) for span in rank_class.spans if span.meets}
             for rank_class in report.detail.classes]
    assert named[0]
    assert all(names == named[0] for names in named)
    alone = closeup("fsdp2", {"dp_shard": 8}, 1)
    assert not any(span.meets for span in of_worst(alone))


def test_every_microbatch_can_be_written_out() -> None:
    few, whole = (simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=8), detail=True, whole=whole)
                  for whole in (False, True))
    assert few.detail is not None
    assert whole.detail is not None
    assert (few.detail.written_out, whole.detail.written_out) == (4, 8)
    assert few.time is not None
    assert whole.time is not None
    assert (whole.time.step_s, whole.time.parts) == (few.time.step_s, few.time.parts)
    assert {span.microbatch for span in whole.detail.classes[0].spans} == set(range(8))
