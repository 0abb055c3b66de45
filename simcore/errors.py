"""Errors of rankscope, and the problems that they carry.

    RankscopeError
    ├── InputError      the user's input is wrong: bad YAML, unknown key, a value out of range     exit code 2
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
    """One mistake in the input: its place, a message, and the rule of the framework that it breaks.

    `where`: `file:line`, a key such as `mesh.tp`, or a command-line option; "" if there is no place. `rule`: "" if
    none.
    """

    where: str
    message: str
    rule: str = ""

    def __str__(self) -> str:
        rule = f" [{self.rule}]" if self.rule else ""
        return f"{self.where}: {self.message}{rule}" if self.where else f"{self.message}{rule}"


class RankscopeError(Exception):
    """Base class of all errors that the user can fix; `problems` holds every `Problem` found."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows instead of a traceback, which is of no use for a wrong input."""
        return [f"{type(self).__name__}: {problem}" for problem in self.problems]

    def __reduce__(self) -> tuple[type[RankscopeError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class InputError(RankscopeError):
    """Raised for an input that is wrong under any framework: bad YAML, unknown keys, values out of range."""


class IllegalLayout(RankscopeError):
    """Raised when the framework itself refuses this combination of parallel sizes and options."""


class NotYet(RankscopeError):
    """Raised for input that the framework accepts, but that this version of rankscope does not model."""
