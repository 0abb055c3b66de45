"""The limit of one quantity over all layouts of a space: fewest GPUs, largest batch, longest sequence, smallest GPU.

[Note: limits of free layouts]
A value holds if some layout with it surely fits and satisfies all conditions; layouts are tried in the order of their
peaks at the last value, so that the one which decides is tried first. The layout of the answer is the best of all that
hold at the limit.

Fewest GPUs: numbers are doubled until one holds (in place of a number that no layout can have, the next smaller one
that some layout can), then every number between the last two is tried in ascending order, because more GPUs need not
hold (7 GPUs cannot be cut in 2 stages). Smaller numbers that were passed over are tried too, up to `_SPARE` layouts.
Machines: each, from the smallest. The others: doubled until none holds, then bisected among the values that some layout
can have (divisors of a global batch that is given; multiples of a unit); then values within and beyond the limit are
tried as a check, the latter with the `_NEAR` layouts that have the lowest peaks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.batch.decides import decides
from simcore.batch.machines import by_size
from simcore.errors import InputError, Problem
from simcore.inputs.loading import changed
from simcore.results.found import FreeLimit
from simcore.results.limit import Quantity, Value
from simcore.search.judge import Candidate, Judged, Refused, Sized, judged, timed
from simcore.search.search import Search, holds, search
from simcore.search.space import Space, candidates, place_of_space
from simcore.search.watch import UNHEARD, LimitWatch
from simcore.simulate import simulate

__all__ = ["cheapest", "free_limit", "free_machine"]

_MOST: Final[dict[Quantity, int]] = {"gpus": 1024, "micro_batch": 1024, "global_batch": 2**20, "sequence": 2**22}
_SEQUENCE: Final = 1024
_KEYS: Final[dict[Quantity, str]] = {"micro_batch": "training.micro_batch_size", "sequence": "training.seq_len",
                                     "global_batch": "training.global_batch_size"}
_SPARE: Final = 1000
"""Layouts that are simulated at most with numbers of GPUs that doubling has passed over."""
_REFUSAL: Final = 0.05
"""Cost of a layout that is refused, in simulations."""
_NEAR: Final = 40
_LIKELY: Final = 16
"""Simulations that a number of GPUs gets at most while a bound is looked for."""
_CUTS: Final = ("mesh.pp", "mesh.dp_replicate", "mesh.cp", "mesh.tp")
"""Axes beside those that cut states over ranks of data parallelism, at the cost of time or of copies."""
_REFUSED: Final = "every layout is refused"
_AT_REST: Final = "what rests on a rank is more than fits, in every layout"


@dataclass(slots=True)
class _Tries:
    """Values that were tried, with the lowest peak of a layout at each; `legal`: values with a layout that is legal.

    `unit`: GPUs of a host; beyond one host only whole ones are tried. `count`: layouts that were tried; `cost`: of
    trying them, in simulations; `watch`: is told of them.
    """

    question: Search
    quantity: Quantity
    held: dict[Value, bool] = field(default_factory=dict)
    lowest: dict[Value, tuple[int, Candidate]] = field(default_factory=dict)
    legal: set[Value] = field(default_factory=set)
    order: dict[tuple[tuple[str, object], ...], int] = field(default_factory=dict)
    refusals: dict[Value, str] = field(default_factory=dict)
    unit: int = 1
    unserved: dict[tuple[Value, tuple[tuple[str, object], ...]], str] = field(default_factory=dict)
    count: int = 0
    cost: float = 0.0
    watch: LimitWatch = UNHEARD

    def numbers(self, values: Iterable[int]) -> Iterator[int]:
        """Those of some numbers of GPUs that are tried."""
        return (each for each in values if each <= self.unit or each % self.unit == 0)

    def space(self, value: Value) -> Space:
        """The space with the quantity at `value`."""
        space = self.question.space
        if self.quantity == "gpus":
            return replace(space, gpus=(int(value),))
        if self.quantity == "machine":
            return replace(space, topologies=(str(value),))
        return replace(space, axes={**space.axes, _KEYS[self.quantity]: (value,)})

    def holds(self, value: Value) -> bool:
        """True if some layout surely fits with the value."""
        if value not in self.held:
            self.held[value] = any(self._fits(value, each) for each in self._by_last_peak(value))
        return self.held[value]

    def nearly_holds(self, value: Value) -> bool:
        """True if one of the layouts that had the lowest peaks surely fits with the value."""
        return self.held.get(value, False) or any(
            self._fits(value, each) for each in self._by_last_peak(value)[:_NEAR])

    def likely_holds(self, value: Value) -> bool:
        """True if a layout that should have one of the lowest peaks surely fits: of the first few."""
        most = self.cost + _LIKELY
        ordered = sorted(self._by_last_peak(value), key=lambda each: (
            each.get("training.recompute") == "none", each.get("training.micro_batch_size", 1)))
        self.held |= {value: True} if any(self._fits(value, each) for each in ordered if self.cost < most) else {}
        return self.held.get(value, False)

    def can_be(self, value: Value) -> bool:
        """True if some layout is legal with the value."""
        return value in self.legal or (value not in self.held and any(
            self._is_legal(value, each) for each in candidates(self.space(value))))

    def _by_last_peak(self, value: Value) -> Sequence[Candidate]:
        """Candidates of a value: first those that had the lowest peaks, then those that cut least besides the data."""
        last = 2**63
        return sorted(candidates(self.space(value)), key=lambda each: (
            self.order.get(self._layout(each), last), math.prod(each.get(axis) or 1 for axis in _CUTS)))

    def _layout(self, candidate: Candidate) -> tuple[tuple[str, object], ...]:
        """A candidate without the quantity."""
        left_out = "topology" if self.quantity == "machine" else _KEYS.get(self.quantity)
        return tuple((key, repr(value)) for key, value in candidate.items() if key != left_out)

    def _is_legal(self, value: Value, candidate: Candidate) -> bool:
        answer = self._judged(value, candidate)
        if isinstance(answer, Refused):
            return False
        self.legal.add(value)
        return True

    def _judged(self, value: Value, candidate: Candidate) -> Judged:
        (answer,) = judged(self.question.space.base, [candidate])
        is_refused = isinstance(answer, Refused)
        self.cost += _REFUSAL if is_refused else 1
        if isinstance(answer, Refused):
            self.refusals.setdefault(value, answer.message)  # the first: of the plainest layout
            if answer.status == "not yet":
                self.unserved[value, self._layout(candidate)] = answer.message.removeprefix("not yet: ")
        return answer

    def _fits(self, value: Value, candidate: Candidate) -> bool:
        self.count += 1
        self.watch.tried(value, self.count)
        answer = self._judged(value, candidate)
        if isinstance(answer, Refused):
            return False
        self.legal.add(value)
        if not isinstance(answer, Sized):
            return False
        self.order[self._layout(candidate)] = answer.peak_bytes
        if value not in self.lowest or answer.peak_bytes < self.lowest[value][0]:
            self.lowest[value] = (answer.peak_bytes, candidate)
        is_good = answer.verdict == "fits" or (self.question.unsure and answer.verdict == "unsure")
        if not is_good:
            self.watch.missed(value, candidate, answer)
        if not is_good or not self._satisfies(candidate, answer):
            return False
        self.watch.holds(value, candidate, answer)
        return True

    def _satisfies(self, candidate: Candidate, sized: Sized) -> bool:
        """True if all conditions on results hold; only those on time make it be simulated with time."""
        base = self.question.space.base
        of_results = [one for one in self.question.space.conditions if one.needs_memory]
        if not all(holds(one, base, candidate, sized) for one in of_results if not one.needs_time):
            return False
        of_time = [one for one in of_results if one.needs_time]
        if not of_time:
            return True
        (time,) = timed(base, [candidate])
        return time is not None and all(holds(one, base, candidate, sized, time) for one in of_time)

    def why(self, value: Value) -> str:
        """Reason at a value that does not hold: what decides in the layout with the lowest peak."""
        if value in self.lowest:
            report = simulate(changed(self.question.space.base, self.lowest[value][1]), timed=False)
            return f"{report.job_verdict}, {decides(report)}"
        return _AT_REST if value in self.legal else f"refused: {self.refusals.get(value, _REFUSED)}"


# ---- answers --------------------------------------------------------------------------------------------------------
def free_limit(question: Search, quantity: Quantity, watch: LimitWatch = UNHEARD, *, ranks: bool = True, unit: int = 1
               ) -> FreeLimit:
    """Limit of `quantity` over the layouts of the question's space; with `ranks` the best layouts there too.

    For "gpus" the space's own numbers, if it has several, are tried in ascending order; else beyond `unit` GPUs only
    multiples of it. InputError if every layout of
    every value is refused. `quantity`: not "machine" (`free_machine`), not "cost" (`cheapest`).
    """
    tries = _Tries(question, quantity, watch=watch, unit=unit)
    if quantity == "gpus":
        value, beyond, untried = _fewest(tries)
    else:
        (value, beyond), untried = _largest(tries, _grid(tries)), 0
    return _answer(tries, value, beyond, untried, ranks=ranks)


def free_machine(question: Search, names: Sequence[str]) -> FreeLimit:
    """The smallest GPU of a list of machines on which some layout of the question's space surely fits."""
    tries = _Tries(question, "machine")
    ordered = by_size(question.space.base, names)
    value = next((name for name in ordered if tries.holds(name)), None)
    smaller = ordered[:ordered.index(value)] if value is not None else ordered
    return _answer(tries, value, smaller[-1] if smaller else None)


def cheapest(question: Search) -> FreeLimit:
    """Fewest USD per million tokens: the first of a ranking by cost, and the second beside it."""
    found = search(question)
    base = question.space.base
    if any(one.usd_per_million_tokens is None for one in found.ranked):
        where = ", ".join({one.topology for one in found.ranked if one.usd_per_million_tokens is None})
        raise InputError(Problem(base.where("topology"), f"no price of a GPU hour is known of {where}"))
    costs = [one.usd_per_million_tokens for one in found.best]
    return FreeLimit(name=base.name, quantity="cost", value=costs[0] if costs else None, best=found if costs else None,
                     beyond=costs[1] if len(costs) > 1 else None, nearest_bytes=None)


def _answer(tries: _Tries, value: Value | None, beyond: Value | None, untried: int = 0, *, ranks: bool = True
            ) -> FreeLimit:
    question, near = tries.question, None if beyond is None else tries.lowest.get(beyond)
    if not tries.legal and tries.refusals:
        first = next(iter(tries.refusals.values()))
        raise InputError(Problem(place_of_space(question.space.base), f"{_REFUSED}, the plainest with: {first}"))
    best = None if value is None or not ranks else search(replace(question, space=tries.space(value)))
    return FreeLimit(
        name=question.space.base.name, quantity=tries.quantity, value=value, best=best, beyond=beyond,
        nearest_bytes=None if near is None else near[0], why="" if beyond is None else tries.why(beyond),
        exceptions=_exceptions(tries, value), untried=untried, unserved=_unserved(tries, value))


def _unserved(tries: _Tries, value: Value | None) -> dict[str, int]:
    """Layouts with fewer GPUs than `value` that are not simulated yet: their number, by what they have."""
    if tries.quantity != "gpus":
        return {}
    return dict(Counter(what for (number, _), what in tries.unserved.items() if isinstance(number, int) and (
        not isinstance(value, int) or number < value)).most_common())


def _exceptions(tries: _Tries, value: Value | None) -> tuple[Value, ...]:
    """Values of the good side that some layout can have and that do not hold."""
    if not isinstance(value, int):
        return ()
    failed = sorted(each for each in tries.legal if isinstance(each, int) and not tries.held.get(each, True))
    return tuple(each for each in failed if (each > value if tries.quantity == "gpus" else each < value))


# ---- fewest GPUs ----------------------------------------------------------------------------------------------------
def _fewest(tries: _Tries) -> tuple[int | None, int | None, int]:
    """(smallest number that holds, the largest below it that does not, numbers below it that were not tried)."""
    given = sorted(tries.question.space.gpus)
    if len(given) > 1:
        value, untried = next((each for each in given if tries.holds(each)), None), 0
    else:
        value, passed = _doubled(tries)
        value, untried = _with_passed(tries, value, passed)
    below = [each for each in tries.legal if isinstance(each, int) and not tries.holds(each) and (
        value is None or each < value)]
    return value, max(below, default=None), untried


def _doubled(tries: _Tries) -> tuple[int | None, list[int]]:
    """(smallest number that holds by doubling, numbers below that were passed over, descending).

    A bound is looked for first, with the layouts of each power of two that are likely to have the lowest peaks.
    """
    power = 1
    while power <= _MOST["gpus"] and not any(map(tries.likely_holds, tries.numbers([power]))):
        power *= 2
    last, passed = 0, list[int]()
    power, most = 1, tries.cost + _SPARE
    while power <= _MOST["gpus"]:
        top = next(filter(tries.can_be, tries.numbers([power])), None)
        for each in tries.numbers(range(power - 1, last, -1)):
            if top is not None or tries.cost > most:
                break
            top = each if tries.can_be(each) else None
        if top is not None:
            if tries.holds(top):
                return next(filter(tries.holds, tries.numbers(range(last + 1, top + 1)))), passed
            passed = [*tries.numbers(range(top - 1, last, -1)), *passed]
        last, power = power, power * 2
    return None, passed


def _with_passed(tries: _Tries, value: int | None, passed: Sequence[int]) -> tuple[int | None, int]:
    """(smallest number that holds, numbers left untried) after those passed over are tried too, the largest first."""
    most = tries.cost + _SPARE
    for done, each in enumerate(passed):
        if tries.cost > most:
            return value, len(passed) - done
        if tries.holds(each):
            value = each
    return value, 0


# ---- largest values -------------------------------------------------------------------------------------------------
def _grid(tries: _Tries) -> Sequence[int]:
    """Values that some layout can have, ascending."""
    space, most = tries.question.space, _MOST[tries.quantity]
    batch = space.base.training.global_batch_size
    if tries.quantity == "micro_batch":
        return range(1, most + 1) if batch is None else [each for each in range(1, most + 1) if batch % each == 0]
    sizes = space.axes.get("training.micro_batch_size", (space.base.training.micro_batch_size,))
    step = _SEQUENCE if tries.quantity == "sequence" else math.lcm(*space.gpus) * math.lcm(*sizes)
    return range(step, max(step, most) + 1, step)


def _largest(tries: _Tries, grid: Sequence[int]) -> tuple[int | None, int | None]:
    """(largest value of the grid that holds, the next one), None where there is none."""
    first = next((at for at in _doubling(len(grid)) if tries.can_be(grid[at])), 0)
    good = _last_good(tries, grid, first - 1)
    if good < first:
        return None, grid[first]
    while (further := next((at for at in _beyond(good, len(grid)) if tries.nearly_holds(grid[at])), None)) is not None:
        tries.held[grid[further]] = True
        good = _last_good(tries, grid, further)
    for part in (1, 2):
        tries.holds(grid[first + (good - first) * part // 3])
    return grid[good], grid[good + 1] if good + 1 < len(grid) else None


def _doubling(count: int) -> Iterator[int]:
    """Places 0, 1, 3, 7 and so on of a grid."""
    at = 0
    while at < count:
        yield at
        at = 2 * at + 1


def _beyond(good: int, count: int) -> Iterator[int]:
    """Places in the grid beyond the neighbour of the last good one."""
    yield from (at for at in (good + 2, good + good // 2 + 2, 3 * good + 2) if at < count)


def _last_good(tries: _Tries, grid: Sequence[int], good: int) -> int:
    """Place of the last value that holds by doubling from `good` (-1: none is known), then bisection; -1 if none."""
    bad = good + 1
    while bad < len(grid) and tries.holds(grid[bad]):
        good, bad = bad, min(2 * bad + 1, len(grid)) if bad + 1 < len(grid) else len(grid)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if tries.holds(grid[middle]) else (good, middle)
    return good
