"""Putting a program together: order, phases, layers, and what it checks of itself."""

from __future__ import annotations

import numpy as np
import pytest

import small
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, LAYER, LayerRows
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Op, Row, Section, Stream

PATHS = ("embedding", "layers.0", "layers.1")


@pytest.fixture
def out() -> Builder:
    return Builder(Tables())


def tile(*rows: Row) -> LayerRows:
    return LayerRows.of(Section(rows))


def build(out: Builder) -> Program:
    return small.written(out, *PATHS)


def test_tables_give_each_name_one_number() -> None:
    tables = Tables()
    assert tables.slot("w", "param") == tables.slot("w", "param") != tables.slot("w", "grad")
    assert tables.comm("all_gather", "tp", "bf16") == 0
    assert tables.hook("fwd:begin") > max(RECOMPUTE_BEGIN, RECOMPUTE_END)


def test_rows_come_out_in_issue_order_with_their_phase(out: Builder) -> None:
    slot = out.tables.slot("x", "activation")
    out.alloc(0, slot, 8)
    out.at(Phase.FORWARD, 3)
    out.alloc(1, slot, 16)
    out.tile(tile((Op.ALLOC, 0, slot, 4, 0, 0), (Op.FREE, -1, slot, -16, 0, 0)), 2)
    out.free(0, slot, 8)
    out.at(Phase.OPTIMIZER)
    out.free(2, slot, 4)
    program = build(out)
    assert program.columns[:, AMOUNT].tolist() == [8, 16, 4, -16, -8, -4]
    assert program.columns[:, LAYER].tolist() == [0, 1, 2, 1, 0, 2]
    assert program.phase.tolist() == [0, 1, 1, 1, 1, 5]
    assert program.microbatch.tolist() == [0, 3, 3, 3, 3, 3]
    program.check()


def test_a_tile_can_be_laid_many_times(out: Builder) -> None:
    slot = out.tables.slot("x", "activation")
    piece = tile((Op.ALLOC, 0, slot, 4, 0, 0))
    for layer in (2, 0, 1):
        out.tile(piece, layer)
    program = build(out)
    assert program.columns[:, LAYER].tolist() == [2, 0, 1]
    assert piece.rows[:, 1].tolist() == [0]


def test_rows_between_the_marks_of_a_replay_are_recompute(out: Builder) -> None:
    slot = out.tables.slot("x", "activation")
    out.at(Phase.BACKWARD, 0)
    out.tile(tile((Op.ALLOC, 0, slot, 4, 0, 0), (Op.MARK, 0, RECOMPUTE_BEGIN, 0, 0, 0), (Op.ALLOC, 0, slot, 2, 0, 0),
                  (Op.MARK, 0, RECOMPUTE_END, 0, 0, 0), (Op.FREE, 0, slot, -6, 0, 0)), 1)
    phases = build(out).phase.tolist()
    assert (phases[0], phases[2], phases[4]) == (Phase.BACKWARD, Phase.RECOMPUTE, Phase.BACKWARD)


def test_nothing_is_posted_for_no_bytes(out: Builder) -> None:
    out.alloc(0, 0, 0)
    out.free(0, 0, 0)
    out.mark(0)
    assert len(build(out).columns) == 1


def test_owners_and_events_have_names(out: Builder) -> None:
    slot = out.tables.slot("x", "activation")
    out.tables.units += ["layers.0", "layers.1"]
    out.mark(out.tables.hook("fwd:pre_forward_begin:{}"), 1)
    out.mark(out.tables.hook("fwd:end"))
    program = build(out)
    assert [program.event(row, 0) for row in program.columns] == ["fwd:pre_forward_begin:layers.1", "fwd:end"]
    assert program.owner(1, slot) == ("layers.0/x", "activation")
    assert program.owner(-1, slot) == ("stage border -1/x", "activation")


def test_a_free_of_what_is_not_held_is_found(out: Builder) -> None:
    slot = out.tables.slot("x", "activation")
    out.alloc(1, slot, 4)
    out.free(2, slot, 4)
    with pytest.raises(AssertionError, match=r"layers\.1/x.*-4"):
        build(out).check()


@pytest.mark.parametrize(("row", "told"), [((Op.ALLOC, 0, 0, -1, 0, 0), "allocation of nothing"),
                                           ((Op.FREE, 0, 0, 1, 0, 0), "free of nothing")])
def test_amounts_have_the_sign_of_what_they_do(out: Builder, row: Row, told: str) -> None:
    out.tile(tile(row), 0)
    with pytest.raises(AssertionError, match=told):
        build(out).check()


def test_calls_are_collectives_with_phase_and_microbatch(out: Builder) -> None:
    gather = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    inner = out.tables.comm("all_to_all", "ep", "bf16")
    out.at(Phase.FORWARD, 1)
    out.collective(0, gather, 64, Stream.ALL_GATHER, 0)
    out.wait(0, 0)
    out.tile(tile((Op.COLLECTIVE, 0, inner, 32, 0, 0)), 1)
    assert build(out).calls().tolist() == [[gather, 64, Phase.FORWARD, 1], [inner, 32, Phase.FORWARD, 1]]


@pytest.mark.parametrize("framework", small.FRAMEWORKS)
def test_rows_are_those_of_the_pieces_one_after_another(framework: str) -> None:
    program = small.program_of(framework, {"dp_shard": 2}, microbatches=2, recompute="full")
    rows = []
    for piece in program.outline.pieces:
        found = program.outline.loose[piece.start:piece.end] if piece.tile < 0 else program.tiles[piece.tile].rows
        rows += [[op, layer + piece.layer, *rest] for op, layer, *rest in found.tolist()]
    assert program.columns.tolist() == rows
    some = np.arange(0, len(rows), 7)
    assert program.rows(some).tolist() == rows[::7]
