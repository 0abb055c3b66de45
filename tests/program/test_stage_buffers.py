"""Buffers that a stage of PyTorch's receives into, and outputs that it returns; small runs of torchtitan's layers."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Op
from simcore.simulate import simulate

DEEP = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}
COUNT, INPUT, LOGITS = 8, 64 * 256 * 2, 64 * 1000 * 2
VIRTUAL, ONE = {"virtual_stages": 2}, {"virtual_stages": 1}
ZB_H1, ZB, ZBV = ({"schedule": name, "virtual_stages": 1 + (name != "zb_h1")} for name in ("zb_h1", "interleaved_zb",
                                                                                          "zbv"))
Pipeline = dict[str, Any]


def _asked(pipeline: Pipeline, **given: Any) -> Any:
    asked = small.scenario("fsdp2", {"pp": 2, "dp_shard": 2}, model=DEEP, microbatches=COUNT, pipeline=pipeline,
                           **given)
    return asked.model_copy(update={"implementation": "torchtitan"})


def _program(rank: int, pipeline: Pipeline, written: int = COUNT, **given: Any) -> Program:
    job, table = prepare(_asked(pipeline, **given))
    plan = place(job.graph, job.mesh, table, rank)
    return lower(plan, Workload(1, 64, 0), actions(table.schedule, plan.stage, written), hooks_of(table))


def _held(program: Program, slot: int, layer: int, *, before: bool) -> int:
    """Bytes of what crosses a border: before the first pass, or when the step is over."""
    total, passed = 0, False
    for row, phase in zip(program.columns.tolist(), program.phase.tolist(), strict=True):
        passed = passed or phase > 0
        if row[0] in (Op.ALLOC, Op.FREE) and row[1:3] == [layer, slot] and not (before and passed):
            total += row[3]
    return total


@pytest.mark.parametrize(("rank", "pipeline", "inputs", "outputs"), [
    (0, ONE, [], [4]), (2, ONE, [5], []),
    (0, VIRTUAL, [6], [2, 7]), (2, VIRTUAL, [3, 8], [5])], ids=["first", "last", "first of two", "last of two"])
def test_every_microbatch_has_a_buffer_for_each_thing_received(rank: int, pipeline: Pipeline, inputs: list[int],
                                                                 outputs: list[int]) -> None:
    program = _program(rank, pipeline)
    for before in (True, False):
        assert [_held(program, HIDDEN, first - 1, before=before) for first in inputs] == [COUNT * INPUT] * len(inputs)
        assert [_held(program, GRAD_HIDDEN, last + 1, before=before) for last in outputs] == (
            [COUNT * INPUT] * len(outputs))
    assert _held(program, HIDDEN, -1, before=False) == 0


@pytest.mark.parametrize("pipeline", [ONE, VIRTUAL, ZB_H1, ZB, ZBV], ids=["one", "two", "zb_h1", "zb", "zbv"])
@pytest.mark.parametrize("written", [COUNT, COUNT - 2], ids=["all", "some"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_step_leaves_what_it_found(rank: int, written: int, pipeline: Pipeline) -> None:
    program = _program(rank, pipeline, written, options={"return_outputs": True})
    change = sum(row[3] for row, phase in zip(program.columns.tolist(), program.phase.tolist(), strict=True)
                 if phase > 0 and row[0] in (Op.ALLOC, Op.FREE))
    has_output = rank == (0 if pipeline is ZBV else 2)
    held = {(0, 2): 1, (2, 1): 1, (2, 2): 1 + (pipeline is ZB)}.get((rank, pipeline["virtual_stages"]), 0)
    held *= "schedule" in pipeline
    assert change == written * (LOGITS * has_output + INPUT * held), "those of the step before go before its passes"


def test_the_last_stage_returns_what_the_model_puts_out() -> None:
    """All microbatches', whether they are written out or not, and once more when they are joined."""
    without, returning = (_peaks(ONE, option=option) for option in (False, True))
    assert returning[0] == without[0]
    assert returning[1] > without[1]


def _peaks(pipeline: Pipeline, *, option: bool) -> list[int]:
    ranks = simulate(_asked(pipeline, options={"return_outputs": option})).ranks
    return [rank.peak.allocated_bytes for rank in sorted(ranks, key=lambda r: r.stage) if rank.peak is not None]


@pytest.mark.parametrize("pipeline", [ONE, VIRTUAL], ids=["one chunk", "two chunks"])
def test_units_are_reduced_once_after_the_last_backward_pass(pipeline: Pipeline) -> None:
    program = _program(0, pipeline)
    units = prepare(_asked(pipeline))[1].units
    mine = [unit for unit in units if unit.first in program_layers(program)]
    assert len(small.calls(program, "reduce_scatter")) == sum(bool(unit.members) for unit in mine)


def program_layers(program: Program) -> set[int]:
    """Layers that the rank allocates for."""
    return {row[1] for row in program.columns.tolist() if row[0] == Op.COMPUTE}


@pytest.mark.parametrize(("layers", "chunks", "counts"), [
    (27, 2, [3, 4, 4, 4, 4, 3, 3, 2]), (126, 1, [31, 32, 32, 31]), (8, 1, [2, 3, 2, 1])])
def test_embedding_and_output_count_as_layers(layers: int, chunks: int, counts: list[int]) -> None:
    asked = small.scenario("fsdp2", {"pp": 4, "dp_shard": 2}, microbatches=8, pipeline={"virtual_stages": chunks},
                           model={"config": "llama-tiny", "overrides": {"num_hidden_layers": layers}})
    job, table = prepare(asked.model_copy(update={"implementation": "torchtitan"}))
    blocks = {layer.index for layer in job.graph.layers if job.graph.kinds[layer.kind].block is None}
    assert [len(blocks.intersection(stage)) for stage in table.stages] == counts


@pytest.mark.parametrize(("count", "pipeline", "told"), [
    (1, ONE, "Number of microbatches (1) must be greater than or equal to the number of stages (2)"),
    (5, VIRTUAL, "multiple of the number of rounds (2), but got 5")])
def test_what_the_schedules_refuse(count: int, pipeline: Pipeline, told: str) -> None:
    asked = small.scenario("fsdp2", {"pp": 2, "dp_shard": 2}, model=DEEP, microbatches=count, pipeline=pipeline)
    report = simulate(asked.model_copy(update={"implementation": "torchtitan"}))
    assert report.status == "illegal"
    assert told in report.problems[0].message


def test_what_is_assumed_of_interleaved_stages_is_said() -> None:
    said = [{a.what for a in simulate(_asked(pipeline)).assumptions} for pipeline in (ONE, VIRTUAL)]
    assert ["parameters of a rank's chunks" in whats for whats in said] == [False, True]


# ---- KempnerForge's stages ------------------------------------------------------------------------------------------
def _kempner(**given: Any) -> Any:
    asked = small.scenario("fsdp2", {"pp": 2, "dp_shard": 2, "tp": 2}, **{"model": DEEP, "microbatches": 4, **given})
    return asked.model_copy(update={"implementation": "kempnerforge"})


def test_kempnerforge_s_stages_have_whole_sequences_and_a_whole_head() -> None:
    """Basic tensor parallelism: the head is no rank's part, what crosses a border is whole, layers are dealt evenly."""
    job, table = prepare(_kempner())
    assert table.stages == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9, 10, 11))
    assert not table.sequence_parallel
    head = next(spec for kind in job.graph.tensors for spec in kind if spec.component == "lm_head")
    assert table.policy(head).in_use.placements == ()
    report = simulate(_kempner())
    assert report.status == "ok", report.problems


def test_kempnerforge_s_experts_in_stages_are_refused() -> None:
    report = simulate(_kempner(model="mixtral-8x7b", microbatches=4))
    assert report.status == "error"
    assert "not yet" in report.problems[0].message
