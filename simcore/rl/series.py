"""Memory over a step of several phases, for figures: the journal's entries, with the training step's series inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from simcore.results.detail import MemorySeries
from simcore.rl.journal import Entry, Journal
from simcore.rl.phases import ENGINE, REFIT, is_outside

__all__ = ["phase_series"]

_LOOSE: Final = "fragmentation"
"""Category that a series omits, like memory outside the allocator: a series counts allocated bytes."""
_Sample = tuple[int, str, Counter[str]]
"""(ns since the step began, phase, bytes by category)."""


def phase_series(journal: Journal, trained: MemorySeries | None) -> MemorySeries:
    """Allocated bytes over a step with phases, by category, for one class of ranks.

    Memory outside the allocator and fragmentation are left out. `trained`: the same over the training step, which
    replaces the journal's training phase; None: the journal alone.
    """
    samples = list(_samples(journal, trained))
    names = sorted({name for _, _, sizes in samples for name in sizes})
    return MemorySeries(
        categories=tuple(names), event_index=tuple(range(len(samples))),
        time_s=tuple(ns / 1e9 for ns, _, _ in samples), phases=tuple(phase for _, phase, _ in samples),
        values=tuple(tuple(sizes[name] for _, _, sizes in samples) for name in names),
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
    """Samples of tensors that return first, then the training step's, plus the other owners on the device."""
    ready = min(entry.ns for entry in entries if entry.spike)
    yield from ((start + entry.ns, "training", _allocated(entry)) for entry in entries
                if entry.ns <= ready and not entry.spike)
    neighbours = Counter({key: size for key, size in entries[0].held.items() if key[0] in (ENGINE, REFIT)})
    others = _allocated(Entry(entries[0].phase, 0, neighbours, spike=False))
    for at, (time_s, phase) in enumerate(zip(trained.time_s, trained.phases, strict=True)):
        sizes = Counter({name: values[at] for name, values in zip(trained.categories, trained.values, strict=True)})
        yield start + ready + round(time_s * 1e9), phase, sizes + others


def _allocated(entry: Entry) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for (_, category), size in entry.held.items():
        if category != _LOOSE and not is_outside(category):
            sizes[category] += size
    return sizes
