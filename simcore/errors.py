"""What can go wrong, and how it is said.

    RankscopeError
    ├── InputError      the person's input is wrong: bad YAML, unknown key, a value out of range   exit code 2
    ├── IllegalLayout   the framework itself refuses this combination; `rule` says which rule      status illegal
    └── NotYet          legal, but this version of rankscope does not model it                     exit code 2

Every error carries a list of `Problem`s, so that all mistakes of a file are shown together.
A bare `ValueError` or `AssertionError` out of the engine is a bug of ours (exit code 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["IllegalLayout", "InputError", "NotYet", "Problem", "RankscopeError"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (`file:line` or a key path), what, and by which framework's rule."""

    where: str
    message: str
    rule: str = ""

    def __str__(self) -> str:
        rule = f" [{self.rule}]" if self.rule else ""
        return f"{self.where}: {self.message}{rule}" if self.where else f"{self.message}{rule}"


class RankscopeError(Exception):
    """Base of all errors that a person can act on."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in the place of a traceback: where in our code it was found helps nobody."""
        return [f"{type(self).__name__}: {problem}" for problem in self.problems]

    def __reduce__(self) -> tuple[type[RankscopeError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class InputError(RankscopeError):
    """The input is wrong, whatever the framework."""


class IllegalLayout(RankscopeError):
    """The framework refuses this layout."""


class NotYet(RankscopeError):
    """The framework would accept it, this version of rankscope cannot model it."""
