"""Outlines: loose rows and tiles in order, sums over pieces, and what scenarios share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import small
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan, place
from simcore.program.builder import Builder
from simcore.program.lower import lower
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, OP, LayerRows
from simcore.recording.tape import Op, Section, Stream

POSTINGS = st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.booleans()), min_size=1, max_size=30)


@given(POSTINGS)
def test_sums_of_pieces_are_sums_of_rows(found: list[tuple[bool, int, bool]]) -> None:
    """Each posting loose or a tile, with another phase now and then."""
    out = Builder(Tables())
    tiles = {size: LayerRows.of(Section(((Op.ALLOC, 0, 0, size, 0, 0),))) for _, size, _ in found}
    for is_tile, size, turns in found:
        if is_tile:
            out.tile(tiles[size], 0)
        else:
            out.alloc(0, 0, size)
        if turns:
            out.at(Phase.FORWARD if out.phase == Phase.BACKWARD else Phase.BACKWARD, 0)
    program = small.written(out, "a")
    outline = program.outline
    sums = [0, *np.cumsum(program.columns[:, AMOUNT]).tolist()]
    at = 0
    for piece, net, top in zip(outline.pieces, outline.nets.tolist(), outline.tops.tolist(), strict=True):
        num_rows = piece.end - piece.start if piece.tile < 0 else 1
        expected = sums[at + num_rows] - sums[at] if piece.tile < 0 else 0
        assert (net, top) == (expected, expected), "bytes only grow here, so the end of a piece is its top"
        at += num_rows
    assert at == len(found)


def test_a_step_of_tiles_alone_has_no_loose_sums() -> None:
    out = Builder(Tables())
    out.tile(LayerRows.of(Section(((Op.ALLOC, 0, 0, 8, 0, 0),))), 0)
    outline = small.written(out, "a").outline
    assert (outline.nets.tolist(), outline.tops.tolist(), outline.calls.tolist()) == ([0], [0], [])


def test_what_is_received_was_counted_by_its_sender() -> None:
    out = Builder(Tables())
    comm = out.tables.comm("send_recv", "pp", "bf16")
    out.collective(0, comm, 8, Stream.RECEIVE, 8)
    out.collective(0, comm, 16, Stream.SEND, 8)
    assert small.written(out, "a").outline.calls.tolist() == [[comm, 16, Phase.BUILD, 0]]


# ---- what scenarios share --------------------------------------------------------------------------------------------
def plan_of(framework: str, mesh: dict[str, int], **training: Any) -> Plan:
    job, table = prepare(small.scenario(framework, mesh, **training))
    return place(job.graph, job.mesh, table, 0)


def program(plan: Plan, batch: int, seq: int, microbatches: int = 2) -> Program:
    order = actions(plan.framework.schedule, plan.stage, microbatches)
    return lower(plan, Workload(batch, seq, 2 << 16), order, hooks_of(plan.framework))


NOTHING: dict[str, Any] = {}
LAYOUTS: list[tuple[str, dict[str, int]]] = [
    ("fsdp2", {"dp_shard": 2}), ("fsdp2", {"dp_shard": 2, "ep": 2}), ("automodel", {"dp_shard": 4, "ep": 2}),
    ("automodel", {"pp": 2}), ("megatron", {"dp_shard": 2, "tp": 2}), ("megatron", {"pp": 5})]


@pytest.mark.parametrize(("framework", "mesh"), LAYOUTS)
def test_jobs_that_differ_in_work_alone_share_an_outline(framework: str, mesh: dict[str, int]) -> None:
    plan = plan_of(framework, mesh)
    one, two = program(plan, 1, 64), program(plan_of(framework, mesh), 1, 128)
    assert one.outline is two.outline
    assert np.array_equal(one.columns[:, OP], two.columns[:, OP])
    assert (one.columns[:, AMOUNT] != two.columns[:, AMOUNT]).any()


@pytest.mark.parametrize(("framework", "mesh"), LAYOUTS)
def test_a_shared_outline_is_the_one_that_would_have_been_written(framework: str, mesh: dict[str, int]) -> None:
    """The same job lowered after another one, and as the first."""
    program(plan_of(framework, mesh), 1, 64)
    shared = program(plan_of(framework, mesh), 1, 256)
    small.forget_outlines()
    alone = program(plan_of(framework, mesh), 1, 256)
    assert shared.outline is not alone.outline
    assert np.array_equal(shared.columns, alone.columns)
    assert np.array_equal(shared.phase, alone.phase)
    assert np.array_equal(shared.microbatch, alone.microbatch)
    assert shared.tables.slots == alone.tables.slots
    assert shared.calls().tolist() == alone.calls().tolist()


@pytest.mark.parametrize("change", [{"recompute": "full"}, {"method": "lora"}, {"optimizer": {"name": "sgd"}},
                                    {"precision": {"params": "bf16"}}])
def test_jobs_that_place_or_keep_other_things_do_not(change: dict[str, Any]) -> None:
    one, two = (program(plan_of("fsdp2", {"dp_shard": 2}, **training), 1, 64) for training in (NOTHING, change))
    assert one.outline is not two.outline


def test_other_orders_of_passes_do_not() -> None:
    plan = plan_of("fsdp2", {"dp_shard": 2})
    assert program(plan, 1, 64, 1).outline is not program(plan, 1, 64, 2).outline
