"""Which factors of the fit stay: one that makes no row better which was left out is taken away.

Comes in: the straight lines of `fit_time.py` and the group of each case (`Case.together`). Goes out: names of factors.
A factor that is taken away is 1: its numbers are what was known before (`fit_priors.py`).

How: backward, one factor at a time. Each factor in turn is held at 1, every group of rows is left out by itself, and
the one without which the rows left out come out best goes, until each that remains is of use. Weights of the robust
fit are those with all rows: a group is then left out by one small solution, (I - H W)^-1 e, with H what the fit makes
of an error in the group's rows, and W their weights. Errors that are reported are not taken from here:
`fit_left_out.py` chooses anew without each group, and solves in full.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from fit_priors import FACTORS

if TYPE_CHECKING:
    from fit_time import Line

__all__ = ["kept_factors"]

REFINED = 8
"""Robust solutions for each number of factors."""
Array = np.ndarray[Any, np.dtype[Any]]


def kept_factors(line: Line, used: Array, groups: Sequence[Hashable], spread: float) -> tuple[str, ...]:
    """Names of the factors that stay, in their order.

    `used`: 1 for cases that may be seen, 0 for others; `groups`: of each case; `spread`: of a case's error, see
    `fit_time.SPREAD`.
    """
    names, seen = list(FACTORS), np.flatnonzero(used > 0)
    slopes = line.slopes[seen]
    rest = line.errors[seen] - slopes @ np.array([line.point[name] for name in names])
    members = _members([groups[n] for n in seen.tolist()])
    stay, at = np.arange(len(names)), np.zeros(len(names))
    while True:
        fit = _fitted(slopes[:, stay], rest, np.array([FACTORS[names[n]] for n in stay]), at[stay], spread)
        at[stay] = fit.at
        best, least = -1, fit.loss(members, fit.at, fit.inverse)
        for place in range(len(stay)):
            found = fit.loss(members, *fit.without(place))
            if found <= least:
                best, least = place, found
        if best < 0:
            return tuple(names[n] for n in stay)
        at[stay[best]] = 0.0
        stay = np.delete(stay, best)


@dataclass(frozen=True)
class _Fit:
    """A robust solution on straight lines: the factors' logarithms `at`, weights of cases, and their covariance."""

    slopes: Array
    rest: Array
    at: Array
    weights: Array
    inverse: Array
    spread: float

    def without(self, place: int) -> tuple[Array, Array]:
        """(solution, covariance) with one factor held at 1, weights as they are."""
        column = self.inverse[:, place] / self.inverse[place, place]
        return self.at - column * self.at[place], self.inverse - np.outer(column, self.inverse[place])

    def loss(self, members: Sequence[Array], at: Array, inverse: Array) -> float:
        """Sum of the robust loss of all cases, each with its group left out."""
        errors, seen = self.rest + self.slopes @ at, self.slopes @ inverse
        return float(np.log(self.spread**2 + np.concatenate(list(self._out(members, errors, seen)))**2).sum())

    def _out(self, members: Sequence[Array], errors: Array, seen: Array) -> Iterator[Array]:
        for group in members:
            through = seen[group] @ self.slopes[group].T * self.weights[group]
            yield np.linalg.solve(np.eye(len(group)) - through, errors[group])


def _fitted(slopes: Array, rest: Array, spreads: Array, at: Array, spread: float) -> _Fit:
    for _ in range(REFINED):
        weights = 1.0 / (spread**2 + (rest + slopes @ at)**2)
        inverse = np.linalg.inv(slopes.T @ (weights[:, None] * slopes) + np.diag(spreads**-2))
        at = -inverse @ (slopes.T @ (weights * rest))
    return _Fit(slopes, rest, at, weights, inverse, spread)


def _members(groups: Sequence[Hashable]) -> list[Array]:
    """Indices of each group's cases."""
    found: dict[Hashable, list[int]] = {}
    for n, group in enumerate(groups):
        found.setdefault(group, []).append(n)
    return [np.array(each) for each in found.values()]
