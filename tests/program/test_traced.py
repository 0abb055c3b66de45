"""Traced numbers: the amounts and answers of a walk, for other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.program.traced import Trace, Traced, Untraced

SIZES = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))


def amounts(sizes: list[Any]) -> list[Any]:
    """Arithmetic and questions as hooks have them."""
    first, second, third = sizes
    found = [2 * first, sum([first, second, third]), third * second - 1, 7 - first, -second, second // third]
    if first == second:
        found.append(max(first, third) + 1)
    if first:
        found.append(first - third)
    return found


@settings(deadline=None, derandomize=True)
@given(SIZES, SIZES)
def test_other_sizes_get_their_own_amounts_or_none(known: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    trace = Trace(3)
    traced = amounts(trace.sizes(known))
    assert [int.__pos__(amount) for amount in traced] == amounts(list(known))
    values = trace.amounts(other)
    same = (known[0] == known[1], bool(known[0])) == (other[0] == other[1], bool(other[0]))
    assert (values is not None) >= (same and known[0] != known[1])
    if values is not None:
        assert [values[amount.number] for amount in traced] == amounts(list(other))


def test_guards_are_answers_on_which_rows_depend() -> None:
    trace = Trace(2)
    first, second = trace.sizes((3, 3))
    assert first == second
    assert first
    assert (trace.amounts((5, 5)), trace.amounts((5, 6)), trace.amounts((0, 0))) == ([5, 5], None, None)


@pytest.mark.parametrize("lost", [float, int, round, lambda one: one % 2, lambda one: one / 2, lambda one: one << 1,
                                  lambda one: 9 // one, lambda one: one ** 2, lambda one: divmod(one, 2), abs])
def test_what_is_not_noted_is_refused(lost: Callable[[Traced], object]) -> None:
    (size,) = Trace(1).sizes((3,))
    with pytest.raises(Untraced):
        lost(size)
