"""Statement of a rule about one place of a recipe or scenario."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["SEVERITIES", "Finding", "Found", "Severity", "line_of"]

Severity = Literal["note", "warning", "error"]
SEVERITIES: Final[tuple[Severity, ...]] = ("note", "warning", "error")
"""From the least to the worst: what may surprise, what does not do what it says, what fails or trains otherwise."""


@dataclass(frozen=True, slots=True)
class Found:
    """Statement as a rule's function makes it.

    `where`: `file:line`, or an option of the command line. `message`: what is wrong, one sentence; `instead`: what to
    write. `severity`, `source`: where they are other than the rule's.
    """

    where: str
    message: str
    instead: str
    severity: Severity | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Statement with the code and severity of its rule, and the framework's file that the rule is from."""

    code: str
    severity: Severity
    where: str
    message: str
    instead: str
    source: str

    def __str__(self) -> str:
        """One line, without what to write instead and without the source."""
        return f"{self.where}: {self.severity} {self.code}: {self.message}"

    @property
    def rank(self) -> int:
        """Place of the severity, from 0 for a note."""
        return SEVERITIES.index(self.severity)


def line_of(place: str) -> str:
    """Place of a message as `file:line`, without the words of a command that stand there, or the name of a release."""
    found = re.match(r"(.+?:[0-9]+)(?: .*)?$", place)
    return found[1] if found else place.partition(" (default of ")[0]
