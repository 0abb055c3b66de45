"""Whole numbers that note how they were computed, so that another plan's amounts follow without another walk.

[Note: traced sizes]
Hooks of a framework compute the amounts in their rows from a few sizes of a plan by sums, differences and products, and
ask whether one is zero or equals another. A walk over traced sizes notes both: steps, by which amounts follow from
sizes, and guards, the answers on which its rows depend. Other sizes that give the same answers give the same rows, with
the amounts of the same steps. Arithmetic that is not noted here is refused (`Untraced`), never lost.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

__all__ = ["Trace", "Traced", "Untraced"]

_Step = tuple[Callable[[int, int], int], int, int, bool]
"""Operation, number of the first operand, second operand, True if that is a constant and not a number."""
_Guard = tuple[Callable[[int, int], bool], int, int, bool]
"""Comparison, and operands as those of a step."""


class Untraced(Exception):
    """An amount that does not follow from traced sizes by noted steps."""


class Trace:
    """Steps from sizes to amounts, and guards, of one walk. Sizes have the first numbers, then each step has one.

    `is_some`: the guards that are asked most, whether a number's value is not 0.
    """

    def __init__(self, num_sizes: int) -> None:
        self.num_sizes = num_sizes
        self.steps: list[_Step] = []
        self.guards: dict[_Guard, bool] = {}
        self.is_some: dict[int, bool] = {}

    def sizes(self, values: Sequence[int]) -> list[Traced]:
        """Traced sizes, in the order of their numbers."""
        return [Traced(value, self, number) for number, value in enumerate(values)]

    def amounts(self, sizes: Sequence[int]) -> list[int] | None:
        """Values of all numbers for other sizes; None where these do not give the guards' answers."""
        values = list(sizes)
        for step, first, second, is_constant in self.steps:
            values.append(step(values[first], second if is_constant else values[second]))
        if any((values[number] != 0) is not answer for number, answer in self.is_some.items()):
            return None
        for (test, first, second, is_constant), answer in self.guards.items():
            if test(values[first], second if is_constant else values[second]) is not answer:
                return None
        return values

    def step(self, of: Callable[[int, int], int], first: Traced, second: int) -> Traced:
        """Result of an operation, which is noted."""
        self.steps.append((of, first.number, *_operand(second)))
        return Traced(of(_plain(first), _plain(second)), self, self.num_sizes + len(self.steps) - 1)

    def guard(self, test: Callable[[int, int], bool], first: Traced, second: int) -> bool:
        """Answer of a comparison, which is noted."""
        answer = test(_plain(first), _plain(second))
        self.guards[test, first.number, *_operand(second)] = answer
        return answer


def _plain(value: int) -> int:
    return int.__pos__(value)


def _operand(value: int) -> tuple[int, bool]:
    return (value.number, False) if isinstance(value, Traced) else (value, True)


def _minus_from(first: int, second: int) -> int:
    return second - first


def _refused(*_: Any) -> NoReturn:
    raise Untraced


class Traced(int):
    """A size, or an amount that follows from sizes: a whole number that knows its number in a `Trace`."""

    trace: Trace
    number: int

    def __new__(cls, value: int, trace: Trace, number: int) -> Traced:
        """Takes the value that the walk under way has for it."""
        made = super().__new__(cls, value)
        made.trace, made.number = trace, number
        return made

    def __add__(self, other: int) -> Traced:
        return self.trace.step(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: int) -> Traced:
        return self.trace.step(operator.sub, self, other)

    def __rsub__(self, other: int) -> Traced:
        return self.trace.step(_minus_from, self, other)

    def __mul__(self, other: int) -> Traced:
        return self.trace.step(operator.mul, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Traced:
        return self.trace.step(operator.floordiv, self, other)

    def __neg__(self) -> Traced:
        return self.trace.step(operator.mul, self, -1)

    def __bool__(self) -> bool:
        known = self.trace.is_some.get(self.number)
        if known is None:
            known = self.trace.is_some[self.number] = int.__bool__(self)
        return known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and self.trace.guard(operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: int) -> bool:
        return self.trace.guard(operator.lt, self, other)

    def __le__(self, other: int) -> bool:
        return self.trace.guard(operator.le, self, other)

    def __gt__(self, other: int) -> bool:
        return self.trace.guard(operator.gt, self, other)

    def __ge__(self, other: int) -> bool:
        return self.trace.guard(operator.ge, self, other)

    __hash__ = int.__hash__
    __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __abs__ = _refused
    __lshift__ = __rlshift__ = __rshift__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused
    __float__ = __int__ = __round__ = __divmod__ = __rdivmod__ = __invert__ = _refused
