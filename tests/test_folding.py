"""Folded and unfolded, extrapolated and written out: shortcuts give the same integers."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import small
from layouts import Layout, layouts, resharded
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.pipeline.schedule import Action, lowered_microbatches
from simcore.placement.plan import Plan
from simcore.program.hooks import HooksFactory
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.results.report import RankReport, Report
from simcore.simulate import place, simulate


def _ok(report: Report) -> Report:
    assert report.status == "ok", report.problems
    return report


def _per_rank(report: Report) -> dict[int, RankReport]:
    """Rank -> the report of its class."""
    return {number: rank for rank in report.ranks for text in rank.ranks for number in _numbers(text)}


def _numbers(text: str) -> range:
    """"0-128:64" -> 0, 64, 128."""
    ends, _, stride = text.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(stride or 1))


def _same_time(a: Report, b: Report) -> None:
    assert a.time is not None
    assert b.time is not None
    assert round(a.time.step_s * 1e9) == round(b.time.step_s * 1e9)


@settings(max_examples=20, deadline=None, derandomize=True)
@example(("fsdp2", {"dp_replicate": 2, "dp_shard": 3, "ep": 2}, {"experts": "ignored"}), 1, "none")
@given(layouts(most=16), st.sampled_from([1, 3]), st.sampled_from(["none", "full"]))
def test_a_class_is_what_each_of_its_ranks_is(layout: Layout, microbatches: int, recompute: str) -> None:
    _same_in_every_class(layout, microbatches, recompute)


@settings(max_examples=20, deadline=None, derandomize=True)
@example(("fsdp2", {"dp_shard": 12}, {"reshard_after_forward": 4}), 1, "full")
@example(("fsdp2", {"dp_shard": 12}, {"reshard_after_forward": 2}), 3, "none")
@example(("fsdp2", {"dp_replicate": 2, "dp_shard": 6}, {"reshard_after_forward": 3}), 1, "none")
@example(("fsdp2", {"dp_shard": 12, "ep": 4}, {"experts": "ignored", "reshard_after_forward": 6}), 1, "none")
@example(("fsdp2", {"dp_shard": 12, "ep": 4}, {"experts": "fully_shard", "reshard_after_forward": 3}), 1, "full")
@given(resharded(most=16), st.sampled_from([1, 3]), st.sampled_from(["none", "full"]))
def test_a_class_is_what_each_of_its_ranks_is_whatever_is_resharded(layout: Layout, microbatches: int,
                                                                    recompute: str) -> None:
    _same_in_every_class(layout, microbatches, recompute)


def _same_in_every_class(layout: Layout, microbatches: int, recompute: str) -> None:
    name, mesh, options = layout
    count = microbatches if mesh.get("pp", 1) == 1 else mesh["pp"] + microbatches
    asked = small.scenario(name, mesh, options=options, microbatches=count, recompute=recompute)
    folded, unfolded = (_ok(simulate(asked, fold=fold)) for fold in (True, False))
    classes, ranks = _per_rank(folded), _per_rank(unfolded)
    assert sorted(classes) == sorted(ranks) == list(range(asked.world_size))
    for number, rank in ranks.items():
        mine = classes[number]
        assert mine.peak == rank.peak, number
        assert mine.traffic == rank.traffic, number
        if not mine.apportioned:
            assert mine.at_rest == rank.at_rest, number
        assert mine.padding_bytes == rank.padding_bytes, number
    assert folded.verdict == unfolded.verdict
    _same_time(folded, unfolded)


STEADY = [
    ("fsdp2", {"dp_shard": 3}, {}), ("fsdp2", {"dp_replicate": 2, "dp_shard": 4, "ep": 2}, {}),
    ("fsdp2", {"dp_shard": 4}, {"sync_gradients": "every"}),
    ("fsdp2", {"dp_shard": 4}, {"reshard_after_forward": False}),
    ("automodel", {"dp_shard": 4, "ep": 2}, {}), ("automodel", {"dp_replicate": 2, "dp_shard": 2}, {}),
    ("automodel", {"pp": 2, "dp_shard": 2, "ep": 2}, {}), ("automodel", {"pp": 2, "dp_shard": 3}, {}),
    ("automodel", {"dp_shard": 4, "ep": 2}, {"defer_fsdp_grad_sync": False}),
    ("megatron", {"dp_shard": 4, "ep": 2, "tp": 2, "etp": 1}, {}),
    ("megatron", {"pp": 5, "dp_shard": 2, "ep": 2}, {}),
    ("megatron", {"pp": 2, "dp_shard": 3}, {"num_layers_in_first_pipeline_stage": 2}),
]


@pytest.mark.parametrize(("name", "mesh", "options"), STEADY)
@pytest.mark.parametrize("microbatches", [6, 8])
def test_extrapolated_microbatches_are_simulated_ones(name: str, mesh: dict[str, int], options: dict[str, object],
                                                      microbatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    microbatches += 2 * mesh.get("pp", 1) - 2
    asked = small.scenario(name, mesh, options=options, microbatches=microbatches)
    _same(_ok(simulate(asked)), _ok(_in_full(asked, monkeypatch)))


@pytest.mark.parametrize("microbatches", [5, 9, 16])
def test_more_microbatches_give_the_host_more_lead(microbatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host issues one in less time than it takes, and the last one, with its reductions, waits for the host."""
    asked = small.scenario("ddp", {"dp_replicate": 2}, model="qwen2.5-3b", microbatches=microbatches)
    training = asked.training.model_copy(update={"seq_len": 128, "micro_batch_size": 8,
                                                 "global_batch_size": 16 * microbatches})
    asked = asked.model_copy(update={"training": training})
    short = _ok(simulate(asked))
    assert short.time is not None
    assert short.time.parts["host"] > 0
    _same(short, _ok(_in_full(asked, monkeypatch)))


@pytest.mark.parametrize("reduce", ["bf16", "fp32"])
def test_a_first_microbatch_that_differs_costs_one_more_and_not_twice_as_many(
        reduce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that stay are added to from the second on; in a copy of fp32 every microbatch is the same."""
    simulation, written = import_module("simcore.simulation.step"), []
    lower = simulation.lower

    def noted(plan: Plan, workload: Workload, order: list[Action], strategy: HooksFactory) -> Program:
        written.append(max(action.microbatch for action in order) + 1)
        return cast(Program, lower(plan, workload, order, strategy))

    monkeypatch.setattr(simulation, "lower", noted)
    precision = {"params": "fp32", "compute": "bf16", "grad_reduce": reduce}
    _ok(simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=64, precision=precision)))
    assert written == [4 if reduce == "bf16" else 3]


def _same(short: Report, long: Report) -> None:
    for a, b in zip(short.ranks, long.ranks, strict=True):
        assert a.traffic == b.traffic
        assert a.at_rest == b.at_rest
        assert a.peak is not None
        assert b.peak is not None
        assert a.peak == b.peak
    _same_time(short, long)
    assert short.time is not None
    assert long.time is not None
    for part in ("forward_s", "backward_s", "optimizer_s", "exposed_communication_s", "model_tflops_per_gpu"):
        assert getattr(short.time, part) == pytest.approx(getattr(long.time, part), rel=1e-12), part


@pytest.mark.parametrize("name", ["ddp", "megatron"])
def test_a_slow_host_is_as_slow_in_every_microbatch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels on one rank: nothing is sent, all the device waits for is the host."""
    asked = small.scenario(name, {}, model="llama-tiny", microbatches=8)
    _same(_ok(simulate(asked)), _ok(_in_full(asked, monkeypatch)))


WHOLE = ("fsdp2", "automodel", "megatron", "megatron_fsdp", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp1")


@settings(max_examples=60, deadline=None, derandomize=True)
@example("zero3", 64, 32, 7, 36, "none")
@example("zero3", 16, 4, 1, 36, "none")
@example("zero3", 4, 6, 1, 8, "full")
@given(st.sampled_from((*WHOLE, "zero3", "zero3")), st.sampled_from([1, 2, 4, 16]), st.integers(1, 12),
       st.sampled_from([1, 2, 7, 64]), st.sampled_from([3, 9]), st.sampled_from(["none", "full"]))
def test_parts_add_up_to_the_step_and_are_those_of_every_microbatch(
        name: str, ranks: int, microbatches: int, seq_len: int, layers: int, recompute: str) -> None:
    """In whole nanoseconds, at lengths at which the host is the slowest; the roofline is the step once more."""
    mesh = {"dp_replicate" if name in ("ddp", "zero0") else "dp_shard": ranks}
    asked = small.scenario(name, mesh, model={"config": "qwen2.5-3b", "overrides": {"num_hidden_layers": layers}},
                           microbatches=microbatches, seq_len=seq_len, recompute=recompute)
    short, long = _ok(simulate(asked)).time, _ok(simulate(asked, whole=True)).time
    assert short is not None
    assert long is not None
    step = round(short.step_s * 1e9)
    assert step == sum(round(part * 1e9) for part in short.parts.values())
    assert short.roofline is not None
    assert abs(sum(short.roofline.seconds.values()) * 1e9 - step) < 1e-3
    assert (short.step_s, short.parts) == (long.step_s, long.parts)


LAYERS = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 24}}
VIRTUAL: list[tuple[dict[str, int], int, int, dict[str, object]]] = [
    ({"pp": 2, "dp_shard": 2}, 2, 16, {}), ({"pp": 2, "dp_shard": 3}, 3, 14, {}), ({"pp": 3, "tp": 2}, 2, 24, {}),
    ({"pp": 4, "dp_shard": 2}, 2, 32, {}), ({"pp": 4, "cp": 2}, 3, 28, {}), ({"pp": 2, "dp_shard": 2}, 4, 30, {}),
    ({"pp": 2, "dp_shard": 2}, 2, 31, {"microbatch_group_size_per_vp_stage": 4}),
    ({"pp": 3, "dp_shard": 2}, 2, 44, {"microbatch_group_size_per_vp_stage": 5}),
    ({"pp": 2, "dp_shard": 2}, 2, 24, {"overlap_grad_reduce": False}),
    ({"pp": 4, "dp_shard": 2}, 2, 32,
     {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 8}),
]


@pytest.mark.parametrize(("mesh", "chunks", "microbatches", "options"), VIRTUAL)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_extrapolated_groups_are_simulated_ones(mesh: dict[str, int], chunks: int, microbatches: int, method: str,
                                                options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleaved: what repeats itself is a group of microbatches; a last group may be smaller."""
    asked = small.scenario("megatron", mesh, options=options, microbatches=microbatches, model=LAYERS, method=method,
                           pipeline={"virtual_stages": chunks})
    assert lowered_microbatches(prepare(asked)[1].schedule, microbatches) < microbatches
    short, unfolded = _ok(simulate(asked)), _ok(simulate(asked, fold=False))
    _same(short, _ok(_in_full(asked, monkeypatch)))
    _same_time(short, unfolded)
    for number, rank in _per_rank(unfolded).items():
        mine = _per_rank(short)[number]
        assert (mine.peak, mine.traffic) == (rank.peak, rank.traffic), number


@pytest.mark.parametrize(("schedule", "chunks", "stages", "count"), [
    ("zb_h1", 1, 2, 40), ("zb_h1", 1, 4, 40), ("interleaved_zb", 2, 2, 24), ("interleaved_zb", 3, 4, 32),
    ("zbv", 2, 2, 40), ("zbv", 2, 4, 60)])
def test_extrapolated_halves_are_simulated_ones(schedule: str, chunks: int, stages: int, count: int,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward passes that are split, whose second half comes later."""
    asked = small.scenario("fsdp2", {"pp": stages, "dp_shard": 2}, microbatches=count, model=LAYERS, pipeline={
        "schedule": schedule, "virtual_stages": chunks}).model_copy(update={"implementation": "torchtitan"})
    assert lowered_microbatches(prepare(asked)[1].schedule, count) < count
    short = _ok(simulate(asked))
    _same(short, _ok(_in_full(asked, monkeypatch)))


def _in_full(asked: Scenario, monkeypatch: pytest.MonkeyPatch) -> Report:
    simulation = import_module("simcore.simulation.step")
    monkeypatch.setattr(simulation, "lowered_microbatches", lambda schedule, count, doublings: count)
    return simulate(asked)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(layouts(most=12))
def test_a_placement_says_of_each_rank_what_it_says_of_it_alone(layout: Layout) -> None:
    name, mesh, options = layout
    asked = small.scenario(name, mesh, options=options)
    placed = _per_rank(_ok(place(asked)))
    for number in range(asked.world_size):
        (alone,) = _ok(place(asked, rank=number)).ranks
        assert placed[number].at_rest == alone.at_rest, number
        assert not placed[number].apportioned
