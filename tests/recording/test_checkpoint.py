"""Checkpointed regions: what stops a replay, and what a selective one keeps."""

from __future__ import annotations

import pytest

from simcore.operators.shared import aten
from simcore.recording.checkpoint import Frame
from simcore.recording.tape import Op, Param, Tape, Tensor

WEIGHT = Param("weight", (8, 8), "bf16", trainable=True)


class Kept:
    """An output that remembers that it was detached."""

    def detach(self) -> str:
        return "kept"


def test_without_a_choice_operators_run_again() -> None:
    frame = Frame(lambda: None)
    assert frame.outputs("mm", lambda: ["made"], replay=True) == ["made"]
    assert frame.kept == []


def test_a_replay_takes_what_was_kept_and_makes_the_rest() -> None:
    frame = Frame(lambda: None, keeps=lambda operator: operator == "mm")
    for operator in ("mm", "attention"):
        frame.outputs(operator, lambda: [Kept()], replay=False)
    assert frame.outputs("mm", lambda: ["made"], replay=True) == ["kept"]
    assert frame.outputs("attention", lambda: ["made"], replay=True) == ["made"]
    assert frame.kept == []


@pytest.mark.parametrize(("early", "complete"), [(True, True), (False, False)])
def test_only_an_early_stop_ends_a_replay(early: bool, complete: bool) -> None:
    assert Frame(lambda: None, early_stop=early).is_complete is complete


def replayed(*, early_stop: bool) -> int:
    """Bytes that a replay of two products and a sum allocates."""
    tape = Tape({}, {})
    x = aten.new(tape, (4, 8), "bf16", "x")

    def run() -> Tensor:
        y = aten.linear(tape, x, WEIGHT, "first")
        return aten.add(tape, y, aten.linear(tape, y, WEIGHT, "second"), "sum")

    out = tape.checkpoint(run, early_stop=early_stop)
    tape.cut()
    tape.seed(out, aten.new(tape, out.shape, out.dtype, "grad"))
    tape.backward()
    numbers = {number for (_, category), number in tape.slots.items() if category == "recompute"}
    return sum(row[3] for row in tape.cut().rows if row[0] == Op.ALLOC and row[2] in numbers)


def test_a_whole_replay_makes_what_nobody_saved_too() -> None:
    assert replayed(early_stop=False) == replayed(early_stop=True) + 2 * 64
