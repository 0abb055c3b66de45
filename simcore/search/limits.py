"""The limit of one quantity over all layouts of a space: fewest GPUs, largest micro batch, longest sequence.

[Note: limits of free layouts]
A value holds if some layout with it surely fits; layouts are tried in the order of their peaks at the last value, so
that the one which decides is tried first. Fewest GPUs: numbers are doubled until one holds, then every number between
the last two is tried in ascending order, because more GPUs need not hold (7 GPUs cannot be cut in 2 stages); numbers
below a power of two that does not hold are not tried. The other two: doubled until none holds, then bisected. The
layout of the answer is the best of all that hold at the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.results.found import FreeLimit
from simcore.results.limit import Quantity
from simcore.search.judge import Candidate, Refused, Sized, judged
from simcore.search.search import Search, search
from simcore.search.space import Space, candidates

__all__ = ["free_limit"]

_MOST: Final[dict[Quantity, int]] = {"gpus": 1024, "micro_batch": 1024, "sequence": 2**22}
_UNIT: Final[dict[Quantity, int]] = {"gpus": 1, "micro_batch": 1, "sequence": 1024}
_KEYS: Final[dict[Quantity, str]] = {"micro_batch": "training.micro_batch_size", "sequence": "training.seq_len"}


@dataclass(slots=True)
class _Tries:
    """Values that were tried, with the lowest peak of a layout at each; `legal`: values with a layout that is legal."""

    question: Search
    quantity: Quantity
    held: dict[int, bool] = field(default_factory=dict)
    lowest: dict[int, int] = field(default_factory=dict)
    legal: set[int] = field(default_factory=set)
    order: dict[tuple[tuple[str, object], ...], int] = field(default_factory=dict)
    refusal: str = ""

    def space(self, value: int) -> Space:
        """The space with the quantity at `value`."""
        space = self.question.space
        if self.quantity == "gpus":
            return replace(space, gpus=(value,))
        return replace(space, axes={**space.axes, _KEYS[self.quantity]: (value,)})

    def holds(self, value: int) -> bool:
        """True if some layout surely fits with the value."""
        if value not in self.held:
            self.held[value] = any(self._fits(value, each) for each in self._by_last_peak(value))
        return self.held[value]

    def _by_last_peak(self, value: int) -> Sequence[Candidate]:
        last = 2**63
        return sorted(candidates(self.space(value)), key=lambda each: self.order.get(self._layout(each), last))

    def _layout(self, candidate: Candidate) -> tuple[tuple[str, object], ...]:
        """A candidate without the quantity."""
        return tuple((key, repr(value)) for key, value in candidate.items() if key != _KEYS.get(self.quantity))

    def _fits(self, value: int, candidate: Candidate) -> bool:
        (answer,) = judged(self.question.space.base, [candidate])
        if isinstance(answer, Refused):
            self.refusal = answer.message
            return False
        self.legal.add(value)
        if not isinstance(answer, Sized):
            return False
        self.order[self._layout(candidate)] = answer.peak_bytes
        self.lowest[value] = min(answer.peak_bytes, self.lowest.get(value, answer.peak_bytes))
        return answer.verdict == "fits" or (self.question.unsure and answer.verdict == "unsure")


def free_limit(question: Search, quantity: Quantity) -> FreeLimit:
    """Limit of `quantity` over the layouts of the question's space; the best layouts there by its objectives.

    For "gpus" the space's own numbers, if it has several, are tried in ascending order. InputError if every layout of
    every value is refused.
    """
    tries = _Tries(question, quantity)
    value, beyond = _fewest(tries) if quantity == "gpus" else _largest(tries)
    if not tries.legal and tries.refusal:
        raise InputError(Problem(question.space.base.name, f"every layout is refused, at last with: {tries.refusal}"))
    best = None if value is None else search(replace(question, space=tries.space(value)))
    return FreeLimit(name=question.space.base.name, quantity=quantity, value=value, best=best, beyond=beyond,
                     nearest_bytes=None if beyond is None else tries.lowest.get(beyond))


def _fewest(tries: _Tries) -> tuple[int | None, int | None]:
    """(smallest number that holds, the largest below it that does not)."""
    value = next((value for value in _numbers(tries) if tries.holds(value)), None)
    below = [number for number in tries.legal if not tries.holds(number) and (value is None or number < value)]
    return value, max(below, default=None)


def _numbers(tries: _Tries) -> Iterator[int]:
    """Numbers of GPUs in ascending order, those that cannot hold left out by doubling."""
    given = tries.question.space.gpus
    if len(given) > 1:
        yield from sorted(given)
        return
    value = 1
    while value <= _MOST["gpus"] and not tries.holds(value):
        value *= 2
    yield from range(value // 2 + 1, min(value, _MOST["gpus"]) + 1)


def _largest(tries: _Tries) -> tuple[int | None, int | None]:
    """(largest value that holds, the smallest tried above it that does not), in multiples of the unit."""
    unit, good, bad = _UNIT[tries.quantity], 0, _UNIT[tries.quantity]
    while tries.holds(bad):
        good, bad = bad, bad * 2
        if bad > _MOST[tries.quantity]:
            return good, None
    while bad - good > unit:
        middle = (good + bad) // 2 // unit * unit
        good, bad = (middle, bad) if tries.holds(middle) else (good, middle)
    return good or None, bad
