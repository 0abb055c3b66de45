"""Claims: a value in a public document, the value by its own rule, and the engine's.

[Note: verdicts]
`reproduced`: the engine's figures agree with all that are published. `refuted`: with at least one they do not.
`refuted, though its rule gives its figures`: the document's own rule gives what it prints, the engine something else.
`nothing to simulate`: a path, a credit, a command of another tool; such a claim has no figures.
A verdict is written by a person, beside the reason; `Claim.problem` says where figures do not bear it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["BY_ITS_RULE", "REFUTED", "REPRODUCED", "UNTESTABLE", "VERDICTS", "Claim", "Figure"]

REPRODUCED: Final = "reproduced"
REFUTED: Final = "refuted"
BY_ITS_RULE: Final = "refuted, though its rule gives its figures"
UNTESTABLE: Final = "nothing to simulate"
VERDICTS: Final = (REPRODUCED, REFUTED, BY_ITS_RULE, UNTESTABLE)

Value = float | str
"""A number, or a word: a verdict, yes or no."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published number or word. `rule`: what the document's own rule gives; `within`: a share of the published."""

    what: str
    published: Value
    simulated: Value
    rule: Value | None = None
    unit: str = ""
    within: float = 0.02

    def agrees(self, value: Value) -> bool:
        """True if a value equals the published one within the tolerance."""
        if isinstance(value, str) or isinstance(self.published, str):
            return value == self.published
        return abs(value - self.published) <= self.within * abs(self.published)


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
        return next(self._problems(figures), None)

    def _problems(self, figures: Sequence[Figure]) -> Iterator[str]:
        if self.verdict not in VERDICTS:
            yield f"{self.number}: {self.verdict} is no verdict"
        if bool(figures) == (self.verdict == UNTESTABLE):
            yield f"{self.number}: {'figures of what is not simulated' if figures else 'no figures'}"
        if not figures:
            return
        off = [one for one in figures if not one.agrees(one.simulated)]
        if self.verdict == REPRODUCED and off:
            yield f"{self.number}: called reproduced, but {off[0].what} is {off[0].simulated}, not {off[0].published}"
        if self.verdict != REPRODUCED and not off:
            yield f"{self.number}: called {self.verdict}, but every figure agrees"
        if self.verdict == BY_ITS_RULE:
            yield from (f"{self.number}: {one.what} is {one.rule} by its rule, not {one.published}"
                        for one in figures if one.rule is None or not one.agrees(one.rule))
