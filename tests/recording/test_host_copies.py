"""Saved tensors that leave: whole ones; parts only where attention reads them in place."""

from __future__ import annotations

import pytest

from simcore.recording.rows import Op
from simcore.recording.tape import Param, Tape, Tensor

LEAST = 8


@pytest.mark.parametrize(("whole", "sent"), [(False, [32]), (True, [64, 32])])
def test_a_part_of_a_tensor_stays_unless_all_of_it_leaves(*, whole: bool, sent: list[int]) -> None:
    tape = Tape({}, {}, leaves=LEAST)
    assert tape.away is not None
    both, other = tape.empty((16,), "fp32", "gate_and_up"), tape.empty((8,), "fp32", "other")
    halves = [Tensor(both.storage, (8,), "fp32") for _ in range(2)]
    if whole:
        tape.away.take_whole(halves)
    weight = Param("weight", (8,), "fp32", trainable=True)
    node = tape.node((weight,), (*halves, other), lambda _tape, _grads, _saved: [None])
    assert node is not None
    del both, other, halves
    tape.cut()
    trip = tape.away.go_and_come()
    assert [row[3] for row in trip.leave.rows if row[0] == Op.COPY] == sent
    assert [-row[3] for row in trip.left.rows if row[0] == Op.FREE] == sent
    node.saved.clear()
    tape.away.drop()


def test_what_stays_is_not_sent() -> None:
    tape = Tape({}, {}, leaves=LEAST)
    assert tape.away is not None
    weight = tape.empty((16,), "fp32", "weight in 8 bits")
    tape.away.stay([weight])
    node = tape.node((Param("w", (16,), "fp32", trainable=True),), (weight,), lambda _tape, _grads, _saved: [None])
    assert node is not None
    tape.cut()
    trip = tape.away.go_and_come()
    assert trip.leave.rows == trip.come.rows == ()
    node.saved.clear()
