"""Event logs of layers: what a tape says beside what was measured, see tests/truth/tape/README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from simcore.recording import LayerTape
from simcore.report import TrafficRow

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


def summit(events: Events) -> tuple[int, int]:
    """(net bytes, the most that is ever there) of a section."""
    changes = bytes_of(events)
    return sum(changes), max(accumulate(changes, initial=0))


def backwards(tapes: list[LayerTape], events: Callable[..., Events], last: Events) -> list[tuple[str, Events]]:
    """Sections from the loss down to the stem; `last` comes after the stem's backward."""
    stem, *layers, norm, head, loss = tapes
    found = [("loss", events(loss.seed, loss.backward, head.backward, norm.backward))]
    found += [(f"backward {i}", events(layers[i].backward)) for i in reversed(range(len(layers)))]
    found[-1][1].extend(events(stem.backward) + last)
    return found


def collectives_apart(measured: dict[str, int], simulated: Iterable[TrafficRow], sizes: dict[str, int]) -> dict[
        tuple[str, int], tuple[int, int]]:
    """(collective, ranks) -> (calls, payload bytes) measured and not simulated. `measured`: "kind bytes ranks"."""
    calls: Counter[tuple[str, int]] = Counter()
    sent: Counter[tuple[str, int]] = Counter()
    for key, count in measured.items():
        kind, payload, group = key.split()
        calls[kind, int(group)] += count
        sent[kind, int(group)] += count * int(payload)
    for row in simulated:
        calls[row.collective, sizes[row.axis]] -= row.calls
        sent[row.collective, sizes[row.axis]] -= row.payload_bytes
    return {key: (calls[key], sent[key]) for key in calls if calls[key] or sent[key]}
