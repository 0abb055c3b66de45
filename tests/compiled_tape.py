"""Events of compiled parts as Inductor's own code has them, beside those of a tape (`tests/truth/tape/README.md`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

from simcore.recording.rows import Section
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Op

__all__ = ["changes_of", "measured_of", "top"]


def changes_of(section: Section, outside: Collection[int | None]) -> list[int]:
    """Births and deaths of a tape, without slots that are made `outside` the part, and its input and gradient given."""
    return [amount for op, _, slot, amount, _, _ in section.rows
            if op in (Op.ALLOC, Op.FREE) and slot not in outside
            and not (amount < 0 and slot in (HIDDEN, GRAD_HIDDEN))]


def measured_of(case: Mapping[str, Any], at: str) -> list[int]:
    """Births and deaths that were measured, at "forward" or "backward"."""
    return next(section["events"] for section in case["sections"] if section["at"] == at)


def top(events: list[int]) -> int:
    """The most bytes that are there at once."""
    return max(accumulate(events, initial=0))
