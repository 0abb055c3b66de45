"""Claims: a value in a public document, the value by hand or by the document's own rule, and the engine's.

[Note: verdicts]
`reproduced`: the figures that decide agree with what is published. `refuted`: they disagree. `refuted, though its rule
gives its figures`: the document's own rule gives what it prints, the engine something else. `undecided`: the band of
the simulation crosses the limit. `an open question, answered`: the document asks, and publishes no value. `nothing to
simulate`: a path, a credit, a command of another tool; such a claim has no figures.
A verdict is written by a person, beside the reason. `Claim.problem` judges by all figures: each has a range of its own
for the engine's value, from arithmetic by hand, and its own expected agreement with the document; neither is read from
the page, and both hold in refuted claims too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from claims.hand import by_hand

__all__ = ["ANSWERED", "BY_ITS_RULE", "REFUTED", "REPRODUCED", "TIGHT", "UNDECIDED", "UNSURE", "UNTESTABLE", "VERDICTS",
           "Between", "Claim", "Figure", "Value"]

REPRODUCED: Final = "reproduced"
REFUTED: Final = "refuted"
BY_ITS_RULE: Final = "refuted, though its rule gives its figures"
UNDECIDED: Final = "undecided"
ANSWERED: Final = "an open question, answered"
UNTESTABLE: Final = "nothing to simulate"
VERDICTS: Final = (REPRODUCED, REFUTED, BY_ITS_RULE, UNDECIDED, ANSWERED, UNTESTABLE)
_DECIDED: Final[dict[str, bool | None]] = {REPRODUCED: True, REFUTED: False, BY_ITS_RULE: False, UNDECIDED: None}

UNSURE: Final = "unsure"
"""Word for a layout whose band crosses the limit: it neither agrees nor disagrees with `fits` or `does not fit`."""
TIGHT: Final = 0.045
"""Widest half of an expected range, as a share: a value times 1.1 leaves every such range that holds the value."""
_SCALES: Final = {"GB": 1e9, "GiB": 2.0**30, "billion": 1e9, "million": 1e6}

Value = float | str
"""A number, or a word: a verdict, yes or no."""


@dataclass(frozen=True, slots=True)
class Between:
    """Published range, ends included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One published number or word beside the engine's.

    `expected`: for a number a formula of `claims.hand` (bytes where the unit is GB or GiB, single parameters where it
    is a million or a billion), for a word the word; `share`: half of the range around the formula's value. `agrees`:
    expected agreement with the published value, None if that is missing or the verdict is `unsure`. `within`: share of
    the published value that counts as agreement. `rule`: formula of the document's own rule. `decides`: the claim is
    about this figure; a claim that is reproduced is about all, unless it marks some.
    """

    what: str
    published: Value | Between | None
    simulated: Value
    expected: str
    agrees: bool | None = True
    rule: str | None = None
    unit: str = ""
    within: float = 0.02
    share: float = 0.02
    decides: bool = False

    def found(self, value: Value) -> bool | None:
        """True if a value agrees with the published one; None if there is none, or the value is `unsure`."""
        if self.published is None or value == UNSURE:
            return None
        if isinstance(self.published, Between):
            return not isinstance(value, str) and self.published.low <= value <= self.published.high
        if isinstance(value, str) or isinstance(self.published, str):
            return value == self.published
        return abs(value - self.published) <= self.within * abs(self.published)

    def by_hand(self) -> Value:
        """Expected value, in the figure's unit."""
        if isinstance(self.simulated, str):
            return self.expected
        return by_hand(self.expected) / _SCALES.get(self.unit, 1.0)

    def by_rule(self) -> float | None:
        """Value by the document's own rule, in the figure's unit."""
        return None if self.rule is None else by_hand(self.rule) / _SCALES.get(self.unit, 1.0)

    def problems(self) -> Iterator[str]:
        """Differences between the engine's value and the expected one, in size and in agreement."""
        expected = self.by_hand()
        if isinstance(self.simulated, str) or isinstance(expected, str):
            if self.simulated != expected:
                yield f"{self.what} is {self.simulated}, expected {expected}"
        elif not abs(self.simulated - expected) <= self.share * abs(expected):
            yield f"{self.what} is {self.simulated:.6g}, expected {expected:.6g} within {self.share:.1%}"
        for value, who in ((self.simulated, "the engine's"), (expected, "the expected")):
            if self.found(value) is not self.agrees:
                yield f"{self.what}: {who} value {value} against {self.published} is {self.found(value)}, " \
                      f"not {self.agrees}"


@dataclass(frozen=True, slots=True)
class Claim:
    """`number`: M1 to M64, X1 to X12; `says`: the claim in our words; `ask` runs the engine."""

    number: str
    says: str
    verdict: str
    because: str
    ask: Callable[[], Sequence[Figure]]

    def problem(self, figures: Sequence[Figure]) -> str | None:
        """Why the figures do not bear the verdict out; None where they do."""
        return next((f"{self.number}: {problem}" for problem in self._problems(figures)), None)

    def _problems(self, figures: Sequence[Figure]) -> Iterator[str]:
        if self.verdict not in VERDICTS:
            yield f"{self.verdict} is no verdict"
        if bool(figures) == (self.verdict == UNTESTABLE):
            yield "figures of what is not simulated" if figures else "no figures"
        if not figures:
            return
        for figure in figures:
            yield from figure.problems()
        yield from self._undecided(figures)
        if self.verdict == BY_ITS_RULE:
            yield from (f"{one.what} is {one.by_rule()} by its rule, not {one.published}"
                        for one in figures if (rule := one.by_rule()) is not None and not one.found(rule))

    def _undecided(self, figures: Sequence[Figure]) -> Iterator[str]:
        """Deciding figures that do not decide as the verdict says."""
        deciding = [one for one in figures if one.decides]
        if self.verdict in (REPRODUCED, ANSWERED):
            deciding = deciding or [one for one in figures if one.published is not None or self.verdict == ANSWERED]
        if self.verdict == ANSWERED:
            yield from (f"{one.what} has a published value" for one in deciding if one.published is not None)
        if self.verdict not in _DECIDED:
            return
        if not deciding:
            yield f"no figure decides that it is {self.verdict}"
        yield from (f"called {self.verdict}, but {one.what} is {one.simulated} against {one.published}"
                    for one in deciding if one.found(one.simulated) is not _DECIDED[self.verdict])
        if self.verdict == BY_ITS_RULE and all(one.rule is None for one in deciding):
            yield "no rule of what decides"
