"""How many step times go farther by chance, where every change was right: beside the numbers of `changes_page.py`.

[Note: right changes]
A row's error has parts: what the engine left out then and has now (the row moved by it), and what is left, of causes
that are still unknown and of the measurement. Where a change is right, what is left knows nothing of it: it stands on
the one side of the measured time as often as on the other. So the sign of what is left is drawn anew, its size and the
move stay, and rows are counted whose error becomes larger by more than the page's threshold. A row that is moved by
5 % and keeps 6 % goes farther wherever both have one sign, however right the move was. Rows of one source, model family
and machine share their sign (`Case.together` of `fit_cases.py`). If changes overshot, or moved what was right, more
rows would go farther than that, and moves and what is left would be correlated: were they blind, with the errors of
then as they are and the sign of each move drawn anew, it would be as many as `Moves.blind` draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 4000
SEED: Final = 20261130
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """Rows that go farther: their number, and if every change was right the mean and the middle 90 of 100 draws."""

    farther: int
    mean: float
    low: int
    high: int

    @property
    def is_chance(self) -> bool:
        return self.farther <= self.high


@dataclass(frozen=True)
class Moves:
    """Rows with an error then and now, as shares of what was measured; an entry for each row.

    `least`: change of an error by more than which it is farther; `together`: groups of rows that share a sign.
    """

    then: Floats
    now: Floats
    least: Floats
    together: tuple[object, ...]

    @property
    def correlation(self) -> float:
        """Of a row's move and what is left, both as logarithms of the simulated time."""
        left = np.log1p(self.now)
        return float(np.corrcoef(left - np.log1p(self.then), left)[0, 1])

    def farther(self, signs: Floats | float = 1.0) -> NDArray[np.bool_]:
        """Rows that go farther, where what is left of a row has its sign times that of `signs`."""
        left = np.log1p(self.now)
        return self._is_farther(np.log1p(self.then) - left + signs * left, signs * left)

    def blind(self, signs: Floats) -> NDArray[np.bool_]:
        """Rows that go farther, where each is moved by as much as it was, the way of `signs`."""
        then = np.log1p(self.then)
        return self._is_farther(then, then + signs * (np.log1p(self.now) - then))

    def _is_farther(self, then: Floats, now: Floats) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.abs(np.expm1(now)) - np.abs(np.expm1(then)) > self.least
        return found

    def signs(self) -> Iterator[Floats]:
        """Draws of a sign for each group, an entry for each row."""
        groups = {group: number for number, group in enumerate(dict.fromkeys(self.together))}
        group_of, rng = np.array([groups[group] for group in self.together]), np.random.default_rng(SEED)
        return (rng.choice((-1.0, 1.0), len(groups))[group_of] for _ in range(DRAWS))


def chances(moves: Moves, parts: Mapping[str, Sequence[int]]) -> dict[str, Chance]:
    """Chance of each part of the rows, by its name; `parts`: places of its rows. See [Note: right changes]."""
    drawn, seen = np.array([moves.farther(signs) for signs in moves.signs()]), moves.farther()
    return {name: _chance(int(seen[list(places)].sum()), drawn[:, list(places)].sum(axis=1))
            for name, places in parts.items()}


def blind(moves: Moves) -> float:
    """Mean number of all rows that would go farther if moves were blind."""
    return float(np.mean([moves.blind(signs).sum() for signs in moves.signs()]))


def _chance(farther: int, counts: NDArray[np.int64]) -> Chance:
    low, high = np.percentile(counts, (5, 95)).round().astype(int).tolist()
    return Chance(farther, float(counts.mean()), low, high)
