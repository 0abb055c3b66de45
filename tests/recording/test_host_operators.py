"""Operators, the unit of the host's time."""

from __future__ import annotations

import pytest

from simcore.recording.host_operators import operators


@pytest.mark.parametrize(("timed", "launches", "expected"), [
    (1.0, {"torch": 1}, 1), (10.0, {"torch": 10}, 10),  # what is made of operators takes as many
    (10.5, {}, 8), (0.0, {"torch": 21}, 5), (0.0, {"triton": 7}, 6)])
def test_python_is_sixteen_parts_of_an_operator_and_a_launch_five(timed: float, launches: dict[str, int],
                                                                  expected: int) -> None:
    assert operators(timed, **launches) == expected
