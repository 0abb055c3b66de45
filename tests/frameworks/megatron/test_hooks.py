"""Megatron's buckets: gathered in the first forward, reduced in the last backward, nothing between."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.megatron.flat_parameters import rank_buffers
from simcore.simulate import simulate

MESH = {"dp_shard": 4, "ep": 2}


def buffers(mesh: dict[str, int] = MESH) -> dict[str, int]:
    return {b.axis: b.flat.numel for b in rank_buffers(small.plan_of("megatron", mesh))}


def called(collective: str, mesh: dict[str, int] = MESH, **given: Any) -> list[tuple[str, str, int]]:
    return small.calls(small.program_of("megatron", mesh, microbatches=3, **given), collective)


def test_whole_buffers_are_gathered_once_in_bf16() -> None:
    found = [call for call in called("all_gather") if call[0] in buffers()]
    assert {phase for _, phase, _ in found} == {"forward"}
    assert {axis: sum(size for a, _, size in found if a == axis) for axis in buffers()} == {
        axis: 2 * numel for axis, numel in buffers().items()}


def test_whole_buffers_are_reduced_once_in_fp32() -> None:
    found = called("reduce_scatter")
    assert {axis: sum(size for a, _, size in found if a == axis) for axis in buffers()} == {
        axis: 4 * numel for axis, numel in buffers().items()}
    assert {phase for _, phase, _ in found} == {"backward"}


def test_without_a_distributed_optimizer_gradients_are_all_reduced() -> None:
    """Then nothing is padded, either."""
    options = {"use_distributed_optimizer": False}
    found = called("all_reduce", {"dp_shard": 4}, options=options)
    trained = sum(p.local for specs in [small.plan_of("megatron", {"dp_shard": 4})] for layer in specs.layers
                  for p in specs.of_layer(layer) if p.trainable)
    assert sum(size for axis, _, size in found if axis == "dp_cp") == 4 * trained
    assert called("reduce_scatter", {"dp_shard": 4}, options=options) == []


def test_main_gradients_stay() -> None:
    program = small.program_of("megatron", MESH, microbatches=2)
    weight = small.postings(program, "embedding.word_embeddings.weight.main_grad")
    assert weight == [(0, "build", 4 * 1024 * 256)]
    assert "unsharded_grad" not in {category for name, category in program.tables.slots
                                    if name.endswith(".grad") and small.postings(program, name)}


def test_sixteen_bit_gradients_are_copied_for_the_step() -> None:
    bf16 = small.program_of("megatron", {"dp_shard": 4}, precision={"main_grads": "bf16"})
    copies = [amount for *_, amount in small.postings(bf16, "fp32_grad_shard")]
    plan = small.plan_of("megatron", {"dp_shard": 4})
    trained = sum(p.local for layer in plan.layers for p in plan.of_layer(layer) if p.trainable)
    assert copies == [4 * (trained // 4)]  # zero_grad of the next step frees them
    assert small.postings(small.program_of("megatron", {"dp_shard": 4}), "fp32_grad_shard") == []


# ---- gathers that nothing overlaps ----------------------------------------------------------------------------------
def test_without_overlap_parameters_are_gathered_once_after_the_step() -> None:
    options = {"overlap_param_gather": False}
    found = [call for call in called("all_gather", options=options) if call[0] in buffers()]
    assert {phase for _, phase, _ in found} == {"optimizer"}
    assert {axis: sum(size for a, _, size in found if a == axis) for axis in buffers()} == {
        axis: 2 * numel for axis, numel in buffers().items()}
    assert {phase for _, phase, _ in called("reduce_scatter", options=options)} == {"backward"}


@pytest.mark.parametrize(("options", "gathers", "reduces"), [
    ({}, False, False), ({"overlap_param_gather": False}, True, False), ({"overlap_grad_reduce": False}, True, True)])
def test_what_nothing_overlaps_is_exposed(options: dict[str, bool], gathers: bool, reduces: bool) -> None:
    """Buckets of a third of the model, and passes so long that one hides beside them."""
    report = simulate(small.scenario("megatron", {"dp_shard": 4}, microbatches=2, seq_len=16384, options=options | (
        {} if reduces else {"bucket_size": 500_000})))
    assert report.time is not None
    time = {row.collective: row for row in report.time.communication if row.axis == "dp_cp"}
    assert (time["all_gather"].exposed_s == pytest.approx(time["all_gather"].alone_s)) == gathers
    assert (time["reduce_scatter"].exposed_s == pytest.approx(time["reduce_scatter"].alone_s)) == reduces
