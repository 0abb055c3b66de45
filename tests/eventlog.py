"""Event logs of layers: what a tape says beside what was measured, see tests/truth/tape/README.md."""

from __future__ import annotations

from collections import Counter
from typing import Any

Events = list[Any]
"""(bytes, category) of a birth or death; text of a collective ("all_to_all 64") or a hook ("hook 2")."""


def sizes(events: Events) -> Events:
    """Without categories, as measured logs are."""
    return [event[0] if isinstance(event, tuple) else event for event in events]


def grouped(events: Events) -> Events:
    """Everything in order, but deaths between two other events as a multiset: their order changes nothing."""
    found: Events = [Counter()]
    for event in events:
        if isinstance(event, int) and event < 0:
            found[-1][event] += 1
        else:
            found += [event, Counter()]
    return found


def bytes_of(events: Events) -> list[int]:
    """Births and deaths alone."""
    return [event for event in events if isinstance(event, int)]


def born(events: Events) -> Counter[str]:
    """Bytes that are born, by category."""
    found: Counter[str] = Counter()
    for event in events:
        if isinstance(event, tuple) and event[0] > 0:
            found[event[1]] += event[0]
    return found
