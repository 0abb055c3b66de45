"""Functions that a running search tells what it finds, for a page that shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.results.found import FoundLayout
from simcore.results.limit import Value
from simcore.search.judge import Candidate, Judged, Sized

__all__ = ["UNHEARD", "UNWATCHED", "LimitWatch", "Watch"]


def _ignored(candidate: Candidate, memory: Sized) -> None:
    pass


def _missed(candidate: Candidate, answer: Judged) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Watch:
    """Functions that a search calls in the process that asked for it.

    `sized`: with each layout that fits and its memory, as it comes; `missed`: with each other one and its answer (one
    that a condition excludes is neither); `ranked`: after each round of times with all
    layouts that are ranked so far, the best first.
    """

    sized: Callable[[Candidate, Sized], None] = _ignored
    ranked: Callable[[Sequence[FoundLayout]], None] | None = None
    missed: Callable[[Candidate, Judged], None] = _missed


UNWATCHED: Final = Watch()


def _unheard(value: Value, count: int) -> None:
    pass


def _unheld(value: Value, candidate: Candidate, memory: Sized) -> None:
    pass


@dataclass(frozen=True, slots=True)
class LimitWatch:
    """Functions that the search for a limit calls.

    `tried`: with each value of which a layout is tried, and the number of layouts so far; `holds`: with each layout
    that fits, its value and its memory; `missed`: with each that has memory and does not surely fit. The limit itself
    may be better than that value.
    """

    tried: Callable[[Value, int], None] = _unheard
    holds: Callable[[Value, Candidate, Sized], None] = _unheld
    missed: Callable[[Value, Candidate, Sized], None] = _unheld


UNHEARD: Final = LimitWatch()
