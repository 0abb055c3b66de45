"""The ledger of a step of several phases: what is put where, moved and dropped, by whom; the highest moment of each.

A program's ledger knows tensors; here whole classes of them move between the device and the host, for processes that
share both. A phase's highest moments on the device and on the host need not be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Entry", "Journal", "Moment", "Space"]

Space = Literal["device", "host"]
Key = tuple[Space, str, str]
"""Space, owner, category."""


@dataclass(slots=True)
class Moment:
    """The highest of a phase so far, on the device and on the host; `ns`: what the phase takes."""

    phase: str
    ns: int = 0
    event: str = ""
    device: Counter[tuple[str, str]] = field(default_factory=Counter)
    host: Counter[tuple[str, str]] = field(default_factory=Counter)

    def bytes_on(self, space: Space) -> int:
        """All owners together."""
        return (self.device if space == "device" else self.host).total()


@dataclass(frozen=True, slots=True)
class Entry:
    """What lay on the device when something had happened: in which phase, so many ns from its begin, by whom held.

    `spike`: it was there for a moment.
    """

    phase: int
    ns: int
    held: Counter[tuple[str, str]]
    spike: bool


class Journal:
    """Written in order. Sizes are bytes by category."""

    def __init__(self) -> None:
        self.held: Counter[Key] = Counter()
        self.phases: list[Moment] = []
        self.entries: list[Entry] = []

    def begin(self, phase: str) -> None:
        """A phase begins with what the one before has left."""
        self.phases.append(Moment(phase))
        self._look("begin")

    def put(self, owner: str, sizes: Mapping[str, int], space: Space = "device", event: str = "") -> None:
        """More of an owner."""
        self._add(owner, sizes, space)
        self._look(event)

    def _add(self, owner: str, sizes: Mapping[str, int], space: Space) -> None:
        self.held.update({(space, owner, category): size for category, size in sizes.items() if size})

    def drop(self, owner: str, space: Space, categories: Collection[str] | None = None) -> dict[str, int]:
        """An owner's categories (None: all) are gone; gives what they were."""
        gone = {key: size for key, size in self.held.items() if key[:2] == (space, owner)
                and (categories is None or key[2] in categories)}
        for key in gone:
            del self.held[key]
        self._look("")
        return {category: size for (_, _, category), size in gone.items()}

    def move(self, owner: str, source: Space, target: Space, categories: Collection[str]) -> int:
        """An owner's categories go to the other space, one tensor after the other; gives how many bytes."""
        moved = self.drop(owner, source, categories)
        self.put(owner, moved, target, f"{owner} to the {target}")
        return sum(moved.values())

    def spike(self, owner: str, sizes: Mapping[str, int], event: str, ns: int = 0) -> None:
        """On the device for so long, beside all that is."""
        before = self.held.copy()
        self._add(owner, sizes, "device")
        self._look(event, spike=True)
        self.phases[-1].ns += ns
        self._look(event, spike=True)
        self.held = before
        self._look("")

    def take(self, ns: int) -> None:
        """The phase takes so much longer."""
        self.phases[-1].ns += ns
        self._look("")

    def size(self, space: Space) -> int:
        """All that is there now."""
        return sum(size for key, size in self.held.items() if key[0] == space)

    def _look(self, event: str, *, spike: bool = False) -> None:
        if not self.phases:
            return
        now = self.phases[-1]
        there = Counter({key[1:]: size for key, size in self.held.items() if key[0] == "device"})
        self.entries.append(Entry(len(self.phases) - 1, now.ns, there, spike))
        spaces: tuple[Space, ...] = ("device", "host")
        for space in spaces:
            found = Counter({key[1:]: size for key, size in self.held.items() if key[0] == space})
            if found.total() > now.bytes_on(space) or not now.event:
                setattr(now, space, found)
                now.event = event if space == "device" else now.event or event
