"""The ledger of a step of several phases: allocations, moves and frees by owner, and the highest moment of each phase.

A program's ledger has single tensors; here classes of tensors move between the device and the host, for processes that
share both. The highest moments of a phase on the device and on the host may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

__all__ = ["COPIES", "Copied", "Entry", "Journal", "Moment", "Space", "Way"]

COPIES: Final = "host copies"
"""Part of a phase for copies between device and host."""
_NOTHING: Final[Mapping[str, int]] = {}
Way = Literal["to_host", "to_device"]

Space = Literal["device", "host"]
Key = tuple[Space, str, str]
"""(space, owner, category)."""


class Copied(NamedTuple):
    """Copies in one direction: their number and all their bytes."""

    calls: int
    num_bytes: int


@dataclass(slots=True)
class Moment:
    """One phase of a step: its name, its duration by part, and its highest moments so far on device and host.

    `parts`: ns by what is done, in order (`COPIES`: between device and host, which nothing overlaps); `copied`: bytes
    and number of those copies by direction. `device`, `host`: bytes by
    (owner, category) at the highest moment of each, which may differ; `event`: text, what happened at that of the
    device.
    """

    phase: str
    parts: Counter[str] = field(default_factory=Counter)
    copied: dict[Way, Copied] = field(default_factory=dict)
    event: str = ""
    device: Counter[tuple[str, str]] = field(default_factory=Counter)
    host: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def ns(self) -> int:
        """Duration so far, in ns."""
        return self.parts.total()

    @property
    def copied_ns(self) -> int:
        """Part of the duration for copies between device and host, in ns."""
        return self.parts[COPIES]

    def bytes_on(self, space: Space) -> int:
        """Bytes of all owners at the phase's highest moment in that space."""
        return (self.device if space == "device" else self.host).total()


@dataclass(frozen=True, slots=True)
class Entry:
    """Bytes on the device after one event of a step. `phase`: index in `Journal.phases`; `ns`: since that phase began.

    `held`: bytes by (owner, category); `spike`: some of them are allocated only for a while, as in a forward pass.
    """

    phase: int
    ns: int
    held: Counter[tuple[str, str]]
    spike: bool


class Journal:
    """Memory of one class of ranks over the phases of a step: allocations, moves and frees, in order.

    `held`: bytes now by (space, owner, category), the space being the device or the host. `phases`: one `Moment` each;
    `entries`: the device after each event of a phase; events before the first phase only change `held`. Sizes in
    arguments are bytes by category.
    """

    def __init__(self) -> None:
        self.held: Counter[Key] = Counter()
        self.phases: list[Moment] = []
        self.entries: list[Entry] = []

    def begin(self, phase: str) -> None:
        """Begins a phase called `phase`, with the bytes that are there; the one before ends."""
        self.phases.append(Moment(phase))
        self._look("begin")

    def put(self, owner: str, sizes: Mapping[str, int], space: Space = "device", event: str = "") -> None:
        """Allocates `sizes` for an owner on the device or on the host; `event` is its description."""
        self._add(owner, sizes, space)
        self._look(event)

    def _add(self, owner: str, sizes: Mapping[str, int], space: Space) -> None:
        self.held.update({(space, owner, category): size for category, size in sizes.items() if size})

    def drop(self, owner: str, space: Space, categories: Collection[str] | None = None) -> dict[str, int]:
        """Frees an owner's categories (None: all) in one space; returns their bytes by category."""
        gone = {key: size for key, size in self.held.items() if key[:2] == (space, owner)
                and (categories is None or key[2] in categories)}
        for key in gone:
            del self.held[key]
        self._look("")
        return {category: size for (_, _, category), size in gone.items()}

    def move(self, owner: str, source: Space, target: Space, categories: Collection[str]) -> int:
        """Moves an owner's categories to the other space; returns the number of bytes.

        Time is not counted. The source is freed before the target is allocated, as for one tensor after the other.
        """
        moved = self.drop(owner, source, categories)
        self.put(owner, moved, target, f"{owner} to the {target}")
        return sum(moved.values())

    def spike(self, owner: str, sizes: Mapping[str, int], event: str, parts: Mapping[str, int] = _NOTHING) -> None:
        """Adds `sizes` on the device while `parts` (ns by what is done) lengthen the phase, and frees them again."""
        before = self.held.copy()
        self._add(owner, sizes, "device")
        self._look(event, spike=True)
        self._lengthen(parts)
        self._look(event, spike=True)
        self.held = before
        self._look("")

    def take(self, what: str, ns: int) -> None:
        """Lengthens the current phase by `ns` of `what`; memory stays as it is."""
        self._lengthen({what: ns})
        self._look("")

    def copy(self, way: Way, num_bytes: int, ns: int) -> None:
        """Lengthens the current phase by `ns`, in which `num_bytes` are copied; memory stays as it is."""
        if num_bytes:
            copied = self.phases[-1].copied
            before = copied.get(way, Copied(0, 0))
            copied[way] = Copied(before.calls + 1, before.num_bytes + num_bytes)
        self.take(COPIES, ns)

    def _lengthen(self, parts: Mapping[str, int]) -> None:
        self.phases[-1].parts.update({what: ns for what, ns in parts.items() if ns})

    def size(self, space: Space) -> int:
        """Bytes of all owners in that space now."""
        return sum(size for key, size in self.held.items() if key[0] == space)

    def _look(self, event: str, *, spike: bool = False) -> None:
        if not self.phases:
            return
        now = self.phases[-1]
        on_device = Counter({key[1:]: size for key, size in self.held.items() if key[0] == "device"})
        self.entries.append(Entry(len(self.phases) - 1, now.ns, on_device, spike))
        spaces: tuple[Space, ...] = ("device", "host")
        for space in spaces:
            current = Counter({key[1:]: size for key, size in self.held.items() if key[0] == space})
            if current.total() > now.bytes_on(space) or not now.event:
                setattr(now, space, current)
                now.event = event if space == "device" else now.event or event
