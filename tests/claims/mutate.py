"""A test of the tests of claims: what the engine says is falsified, and each claim must fail.

    PYTHONPATH=tests python -m claims.mutate
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from claims.claim import ANSWERED, BY_ITS_RULE, REFUTED, REPRODUCED, UNDECIDED, UNSURE, Claim, Figure, Value
from claims.falsified import wrong_engine
from claims.page import CLAIMS

__all__ = ["LEAST", "Outcome", "mutated", "outcomes", "table", "wrong_engines"]

LEAST: Final = 0.95
"""Share of the claims concerned that each mutation must make fail."""
AMOUNTS: Final = ("GB", "GiB", "million", "billion")
"""Units of bytes and of parameters."""
Asked = Sequence[tuple[Claim, Sequence[Figure]]]

_TURNED: Final = {"yes": "no", "no": "yes", "fits": "does not fit", "does not fit": "fits", UNSURE: "fits"}
_OTHER: Final = {REPRODUCED: REFUTED, REFUTED: REPRODUCED, BY_ITS_RULE: REPRODUCED, UNDECIDED: REFUTED,
                 ANSWERED: REFUTED}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One mutation: `claims` that have such a value, those that `failed`, and the numbers of those that `passed`."""

    name: str
    claims: int
    failed: int
    passed: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the claims concerned that fail; 0 if there are none."""
        return self.failed / self.claims if self.claims else 0.0


def _times(factor: float) -> Callable[[Value], Value]:
    return lambda value: value if isinstance(value, str) else factor * value


def _turned(value: Value) -> Value:
    return _TURNED.get(value, f"not {value}") if isinstance(value, str) else value


def _doubted(value: Value) -> Value:
    return UNSURE if value in ("fits", "does not fit") else value


MUTATIONS: Final[dict[str, Callable[[Value], Value]]] = {
    "all numbers x 1.1": _times(1.1), "all numbers x 3": _times(3), "all numbers x 0.1": _times(0.1),
    "all words turned": _turned, "all verdicts unsure": _doubted}


def mutated(figures: Iterable[Figure], change: Callable[[Value], Value]) -> list[Figure]:
    """Figures with other simulated values; everything else stays."""
    return [replace(figure, simulated=change(figure.simulated)) for figure in figures]


def outcomes(asked: Asked) -> list[Outcome]:
    """Each mutation of all values of a claim, of each value alone, and of the claim's own verdict."""
    found = [_outcome(name, ((claim.number, claim, mutated(figures, change)) for claim, figures in asked
                             if mutated(figures, change) != list(figures))) for name, change in MUTATIONS.items()]
    for name, change in MUTATIONS.items():
        alone = ((f"{claim.number} {figure.what}", claim, [*figures[:at], *mutated([figure], change),
                                                           *figures[at + 1:]])
                 for claim, figures in asked for at, figure in enumerate(figures)
                 if mutated([figure], change) != [figure])
        found.append(_outcome(name.replace("all ", "one of the "), alone))
    found.append(_outcome("the claim's verdict turned", (
        (claim.number, replace(claim, verdict=_OTHER[claim.verdict]), list(figures))
        for claim, figures in asked if figures)))
    return found


def wrong_engines(asked: Asked, factors: Iterable[float]) -> list[Outcome]:
    """All bytes and parameters of the engine's own reports multiplied, for claims that ask for any."""
    concerned = [claim for claim, figures in asked if any(figure.unit in AMOUNTS for figure in figures)]
    found = []
    for factor in factors:
        with wrong_engine(factor):
            found.append(_outcome(f"the engine's bytes x {factor:g}", (
                (claim.number, claim, _answers(claim)) for claim in concerned)))
    return found


def _answers(claim: Claim) -> Sequence[Figure]:
    """Figures of a claim; none, which is a problem too, where a wrong engine leaves nothing to answer with."""
    try:
        return claim.ask()
    except (ArithmeticError, ValueError, AssertionError):
        return ()


def _outcome(name: str, tried: Iterable[tuple[str, Claim, Sequence[Figure]]]) -> Outcome:
    results = [(number, claim.problem(figures)) for number, claim, figures in tried]
    passed = tuple(number for number, problem in results if problem is None)
    return Outcome(name, len(results), len(results) - len(passed), passed)


def table(found: Iterable[Outcome]) -> str:
    """One line a mutation, for a terminal."""
    lines = [f"{'mutation':<32}{'tried':>7}{'fail':>7}{'share':>9}  still pass"]
    lines += [f"{one.name:<32}{one.claims:>7}{one.failed:>7}{one.share:>9.1%}  {', '.join(one.passed)}".rstrip()
              for one in found]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    given = [(claim, claim.ask()) for claim in CLAIMS]
    results = [*outcomes(given), *wrong_engines(given, (1.1, 3, 0.1))]
    sys.stdout.write(table(results))
    sys.exit(any(one.share < LEAST for one in results))
