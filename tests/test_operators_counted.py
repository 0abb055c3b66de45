"""Operators, the unit of the host's time."""

from __future__ import annotations

from simcore.operators.counted import NONE, Operators


def test_nothing_takes_no_time_either_way() -> None:
    assert sum(NONE) == 0
    assert Operators(1, 2).backward == 2
