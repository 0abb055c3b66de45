"""Received tensors that a stage keeps, between steps and within one; small runs under Megatron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import small
from simcore.frameworks.registry import hooks_of
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Op

DEEP = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}
INPUT = 64 * 256 * 2
VIRTUAL, ONE = {"virtual_stages": 2}, {"virtual_stages": 1}


def _program(rank: int, **given: Any) -> Program:
    return small.program_of("megatron", {"pp": 2}, model=DEEP, microbatches=4, rank=rank, **given)


def _held(program: Program, slot: int, first: int, *, until_forward: bool = False) -> int:
    """Bytes of what crosses into layer `first`: at the end, or before anything runs."""
    layer, total = first - (slot == HIDDEN), 0
    for row, phase in zip(program.columns.tolist(), program.phase.tolist(), strict=True):
        if until_forward and phase > 0:
            break
        if row[0] in (Op.ALLOC, Op.FREE) and row[1:3] == [layer, slot]:
            total += row[3]
    return total


@pytest.mark.parametrize(("rank", "pipeline", "firsts", "others"), [
    (0, ONE, [], [1]), (1, ONE, [5], []),
    (0, VIRTUAL, [5], [1]), (1, VIRTUAL, [3, 7], [])], ids=["first", "last", "first of two", "last of two"])
def test_a_chunk_keeps_its_newest_input_and_the_inputs_gradient(rank: int, pipeline: dict[str, int],
                                                                firsts: list[int], others: list[int]) -> None:
    """From step to step the same: what a step begins with is what it leaves."""
    program = _program(rank, pipeline=pipeline)
    for slot in (HIDDEN, GRAD_HIDDEN):
        for begins in (True, False):
            assert [_held(program, slot, first, until_forward=begins) for first in firsts] == [INPUT] * len(firsts)
            assert [_held(program, slot, first, until_forward=begins) for first in others] == [0] * len(others)


def test_the_next_input_takes_its_place() -> None:
    """The first forward pass of a chunk drops the pair of the step before, and no sooner."""
    program = _program(1, pipeline=VIRTUAL)
    rows = [row for row in program.columns.tolist() if row[0] in (Op.ALLOC, Op.FREE)]
    for first in (3, 7):
        moves = [row[0] for row in rows if row[1:3] == [first - 1, HIDDEN]]
        assert moves[:3] == [Op.ALLOC, Op.ALLOC, Op.FREE], "kept, received, dropped"
        grads = [row[0] for row in rows if row[1:3] == [first, GRAD_HIDDEN]]
        assert grads[:2] == [Op.ALLOC, Op.FREE]
        assert grads[-1] == Op.ALLOC


def test_others_drop_a_gradient_when_it_is_sent() -> None:
    job, table = small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=4)
    plan = place(job.graph, job.mesh, replace(table, keeps_received=False), 1)
    program = lower(plan, Workload(1, 64, 0), actions(table.schedule, plan.stage, 4), hooks_of(table))
    assert _held(program, GRAD_HIDDEN, 5) == _held(program, HIDDEN, 5) == 0
