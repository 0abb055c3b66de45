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
    """One problem: its place (`file:line` or a key path), a message, and the framework's rule if there is one."""

    where: str
    message: str
    rule: str = ""

    def __str__(self) -> str:
        rule = f" [{self.rule}]" if self.rule else ""
        return f"{self.where}: {self.message}{rule}" if self.where else f"{self.message}{rule}"


class RankscopeError(Exception):
    """Base of all errors that the user can fix."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows instead of a traceback, which is of no use for a wrong input."""
        return [f"{type(self).__name__}: {problem}" for problem in self.problems]

    def __reduce__(self) -> tuple[type[RankscopeError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class InputError(RankscopeError):
    """The input is wrong under any framework."""


class IllegalLayout(RankscopeError):
    """The framework refuses this layout."""


class NotYet(RankscopeError):
    """The framework accepts the layout, but this version of rankscope does not model it."""
