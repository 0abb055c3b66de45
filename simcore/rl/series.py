"""Memory over a step of several phases, for pictures: what the journal tells, with the training step's own moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from simcore.results.detail import MemorySeries
from simcore.rl.journal import Entry, Journal
from simcore.rl.phases import ENGINE, REFIT, is_outside

__all__ = ["phase_series"]

_LOOSE: Final = "fragmentation"
"""A series leaves it out, as it does what is outside: it counts what is allocated."""
_Sample = tuple[int, str, Counter[str]]
"""Ns from the step's begin, phase, bytes by category."""


def phase_series(journal: Journal, trained: MemorySeries | None) -> MemorySeries:
    """Of one class of ranks. `trained`: of the training step alone, which takes the place of its phase."""
    samples = list(_samples(journal, trained))
    names = sorted({name for _, _, held in samples for name in held})
    return MemorySeries(
        categories=tuple(names), event_index=tuple(range(len(samples))),
        time_s=tuple(ns / 1e9 for ns, _, _ in samples), phases=tuple(phase for _, phase, _ in samples),
        values=tuple(tuple(held[name] for _, _, held in samples) for name in names),
        layers=("",) * len(samples))


def _samples(journal: Journal, trained: MemorySeries | None) -> Iterator[_Sample]:
    start = 0
    for number, moment in enumerate(journal.phases):
        entries = [entry for entry in journal.entries if entry.phase == number]
        if moment.phase == "training" and trained is not None:
            yield from _trained(entries, start, trained)
        else:
            yield from ((start + entry.ns, moment.phase, _allocated(entry)) for entry in entries)
        start += moment.ns


def _trained(entries: list[Entry], start: int, trained: MemorySeries) -> Iterator[_Sample]:
    """What comes back first, then the step's own moments beside whoever else is there."""
    ready = min(entry.ns for entry in entries if entry.spike)
    yield from ((start + entry.ns, "training", _allocated(entry)) for entry in entries
                if entry.ns <= ready and not entry.spike)
    beside = Counter({key: size for key, size in entries[0].held.items() if key[0] in (ENGINE, REFIT)})
    others = _allocated(Entry(entries[0].phase, 0, beside, spike=False))
    for at, (time_s, phase) in enumerate(zip(trained.time_s, trained.phases, strict=True)):
        held = Counter({name: values[at] for name, values in zip(trained.categories, trained.values, strict=True)})
        yield start + ready + round(time_s * 1e9), phase, held + others


def _allocated(entry: Entry) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, category), size in entry.held.items():
        if category != _LOOSE and not is_outside(category):
            found[category] += size
    return found
