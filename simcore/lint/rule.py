"""The seam of rules: a record that names a rule, says where it is from, and has a function that looks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simcore.lint.finding import Finding, Found, Severity, line_of
from simcore.lint.subject import Subject

__all__ = ["Example", "Find", "Rule"]


Find = Callable[[Subject], Iterable[Found]]
"""Looks for a rule's fault in one subject; yields nothing for what the rule is not about."""


@dataclass(frozen=True, slots=True)
class Example:
    """Lines of a file that break a rule, and lines that do not, for the page and the tests.

    `base`: name of the recipe or scenario that they are added to (`lint/examples.py`); the lines take the place of its
    lines with the same keys. `settings`: answers by `--set`. `launch`: launch command beside it.
    """

    base: str
    bad: str
    good: str
    launch: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `code` as findings have it, the severity of most of them, what it says, and where that is from.

    `title`: one sentence for the page. `source`: framework, version and file.
    """

    code: str
    severity: Severity
    title: str
    source: str
    example: Example
    find: Find

    def findings(self, subject: Subject) -> list[Finding]:
        """Statements about a subject, each once, in the order in which they were found."""
        return list(dict.fromkeys(
            Finding(self.code, one.severity or self.severity, line_of(one.where), one.message, one.instead,
                    one.source or self.source) for one in self.find(subject)))
