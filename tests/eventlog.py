"""Event logs of layers: what a tape says beside what was measured, see tests/truth/tape/README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from simcore.recording.layer import RecordedLayer
from simcore.results.report import TrafficRow

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


Sections = list[tuple[str, Events]]
"""An event: its place, and the change of memory there."""


def same_events(recorded: Sections, measured: Sections) -> None:
    """Every event of every section, in order."""
    for (at, mine), (where, truth) in zip(recorded, measured, strict=True):
        assert at == where
        assert grouped(sizes(mine)) == grouped(truth), at


def same_summits(recorded: Sections, measured: Sections) -> None:
    """Net bytes of every section, and the most that is ever there."""
    for (at, mine), (_, truth) in zip(recorded, measured, strict=True):
        assert summit(sizes(mine)) == summit(truth), at


def same_births(recorded: Sections, case: dict[str, Any]) -> None:
    """Bytes that are born in every section, by category."""
    born_of = {section["at"]: section["born"] for section in case["sections"]}
    for at, mine in recorded:
        assert born(mine) == born_of[at], at


def in_order_of(recorded: Sections, case: dict[str, Any]) -> Sections:
    """The measured sections in the order of the recorded ones; both name the same."""
    found = {section["at"]: section["events"] for section in case["sections"] if section["events"]}
    assert found.keys() == dict(recorded).keys()
    return [(at, found[at]) for at, _ in recorded]


def backwards(tapes: list[RecordedLayer], events: Callable[..., Events], last: Events) -> Sections:
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
