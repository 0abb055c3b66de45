"""The builder: rows in issue order, in runs between tiles, and what is said of each."""

from __future__ import annotations

from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.tile import AMOUNT, AUX, OP, SLOT, STREAM, LayerRows
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op, Section, Stream


def test_rows_come_in_issue_order_and_runs_end_at_tiles_and_phases() -> None:
    out = Builder(Tables())
    tile = LayerRows.of(Section(((Op.ALLOC, 0, 0, 8, 0, 0),)))
    out.at(Phase.FORWARD, 0)
    out.alloc(0, 0, 5)
    out.tile(tile, 1)
    out.tile(tile, 2)
    out.free(0, 0, 5)
    out.at(Phase.BACKWARD)
    out.wait(0, 3)
    made = out.build(["a", "b", "c"])
    assert len(made.tiles) == 1, "one section is one tile"
    assert [(p.tile, p.layer, p.phase, p.end - p.start) for p in made.pieces] == [
        (-1, 0, Phase.FORWARD, 1), (0, 1, Phase.FORWARD, 0), (0, 2, Phase.FORWARD, 0), (-1, 0, Phase.FORWARD, 1),
        (-1, 0, Phase.BACKWARD, 1)]
    assert made.loose[:, OP].tolist() == [Op.ALLOC, Op.FREE, Op.WAIT]


def test_nothing_is_posted_for_no_bytes() -> None:
    out = Builder(Tables())
    out.alloc(0, 0, 0)
    out.free(0, 0, 0)
    assert len(out.build(["a"]).loose) == 0


def test_python_is_a_row_that_does_nothing() -> None:
    out = Builder(Tables())
    out.python(40)
    out.compute(Kernel.COPY, 0, 16, 70)
    rows = out.build(["a"]).loose
    assert rows[:, [OP, AMOUNT, AUX]].tolist() == [[Op.COMPUTE, 0, 0], [Op.COMPUTE, 0, 16]]
    assert shapes_in(rows[:, STREAM]).tolist() == [40, 70]
    assert rows[1, SLOT] == Kernel.COPY


def test_calls_and_copies_say_where_they_run() -> None:
    out = Builder(Tables())
    out.collective(1, 0, 64, Stream.ALL_GATHER, 7)
    out.copy(1, 0, 32, Stream.REDUCE, 9)
    rows = out.build(["a", "b"]).loose
    assert rows[:, [OP, AMOUNT, STREAM]].tolist() == [
        [Op.COLLECTIVE, 64, Stream.ALL_GATHER], [Op.COPY, 32, Stream.REDUCE]]


def test_a_passage_is_repeated_in_another_microbatch() -> None:
    out = Builder(Tables())
    tile = LayerRows.of(Section(((Op.ALLOC, 0, 0, 8, 0, 0),)))
    out.at(Phase.FORWARD, 0)
    out.alloc(0, 0, 5)
    start = out.here()
    out.tile(tile, 1)
    out.alloc(0, 0, 6)
    out.at(Phase.LOSS)
    out.free(0, 0, 6)
    passage = out.passage(start)
    out.at(Phase.FORWARD, 3)
    out.alloc(0, 0, 7)
    out.repeat(passage)
    assert out.phase == Phase.LOSS
    made = out.build(["a", "b"])
    assert made.loose[:, AMOUNT].tolist() == [5, 6, -6, 7, 6, -6]
    assert [(p.tile, p.start, p.end, p.phase, p.microbatch) for p in made.pieces[-4:]] == [
        (-1, 3, 4, Phase.FORWARD, 3), (0, 0, 0, Phase.FORWARD, 3), (-1, 4, 5, Phase.FORWARD, 3),
        (-1, 5, 6, Phase.LOSS, 3)]
