"""The timeline: tracks of all rank classes run on concurrent streams and shared links, in simpy.

Comes in: a `Track` per class, and a `Wiring` that says which classes meet in which communicator and over which links.
Goes out: `ClassTimes` in whole nanoseconds. One process a stream; a `_Link` only where two streams of a rank share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from simcore.streams import Call, Track
from simcore.tape import Stream

__all__ = ["ClassTimes", "Wiring", "run"]

_SEND = int(Stream.SEND)
_MESSAGES = (_SEND, int(Stream.RECEIVE))
Process = Generator[simpy.Event, Any, None]


class Wiring(Protocol):
    """How classes are connected. `comm` is the number that the class's own program gives a communicator."""

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        """Classes in that communicator of a class."""

    def link(self, number: int, comm: int) -> str:
        """The link that it crosses."""

    def lane(self, number: int) -> int:
        """Classes of the same lane send each other what crosses a stage border."""


@dataclass(eq=False)
class ClassTimes:
    """What one class did.

    `item_ends`: when each compute item ended; `waited_at`: ns that it waited there; `calls`: (call, start, end).
    """

    item_ends: list[int] = field(default_factory=list)
    waited_at: list[int] = field(default_factory=list)
    calls: list[tuple[Call, int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """When everything of this class is done."""
        last_call = max((end for _, _, end in self.calls), default=0)
        return max(self.item_ends[-1] if self.item_ends else 0, last_call)


def run(tracks: Sequence[Track], wiring: Wiring) -> list[ClassTimes]:
    """Run all classes."""
    machine = _Machine(tracks, wiring)
    machine.environment.run()
    return machine.times


class _Machine:
    def __init__(self, tracks: Sequence[Track], wiring: Wiring) -> None:
        self.environment = simpy.Environment()
        self.wiring = wiring
        self.times = [ClassTimes() for _ in tracks]
        self.meetings: dict[object, _Meeting] = {}
        self.mail: dict[tuple[int, int, int, int], simpy.Event] = {}
        for number, track in enumerate(tracks):
            self._start(number, track)

    def _start(self, number: int, track: Track) -> None:
        environment, done, gates = self.environment, _Flags(self.environment), _Flags(self.environment)
        watched = {c.gate for calls in track.calls.values() for c in calls}
        shared = self._shared_links(number, track)
        for stream, calls in track.calls.items():
            environment.process(self._calls(number, stream, calls, done, gates, shared))
        environment.process(self._compute(number, track, done, gates, watched))

    def _shared_links(self, number: int, track: Track) -> dict[str, _Link]:
        """Links on which more than one stream of a rank sends."""
        users: dict[str, set[int]] = {}
        for stream, calls in track.calls.items():
            for comm in dict.fromkeys(c.comm for c in calls):
                users.setdefault(self.wiring.link(number, comm), set()).add(stream)
        return {link: _Link(self.environment) for link, streams in users.items() if len(streams) > 1}

    # ---- processes ----------------------------------------------------------------------------------------------
    def _compute(self, number: int, track: Track, done: _Flags, gates: _Flags, watched: set[int]) -> Process:
        """Kernels one after another; the environment hears of them only where another stream can notice."""
        environment, times, ahead = self.environment, self.times[number], 0
        for place, item in enumerate(track.items):
            ahead += item.ns
            alone = item.call is not None and self._is_alone(number, item.call)
            if ahead and (place in watched or item.wait_for >= 0 or (item.call is not None and not alone)):
                yield environment.timeout(ahead)
                ahead = 0
            before = int(environment.now) + ahead
            if item.call is not None:
                if alone:
                    ahead += item.call.ns
                else:
                    yield from self._together(number, item.call)
                times.calls.append((item.call, before, int(environment.now) + ahead))
            elif item.wait_for >= 0 and not done.is_up(item.wait_for):
                yield done.event(item.wait_for)
            times.waited_at.append(int(environment.now) + ahead - before)
            times.item_ends.append(int(environment.now) + ahead)
            if place in watched:
                gates.put_up(place)

    def _is_alone(self, number: int, call: Call) -> bool:
        return len(self.wiring.meets(number, call.comm)) < 2

    def _calls(self, number: int, stream: int, calls: Sequence[Call], done: _Flags, gates: _Flags,
               shared: dict[str, _Link]) -> Process:
        environment, times = self.environment, self.times[number]
        for call in calls:
            if call.gate >= 0 and not gates.is_up(call.gate):
                yield gates.event(call.gate)
            start = int(environment.now)
            if stream in _MESSAGES:
                yield from self._message(number, stream, call)
            else:
                link = shared.get(self.wiring.link(number, call.comm))
                if link is None:
                    yield from self._together(number, call)
                else:
                    if link.is_busy:
                        yield link.turn()
                    link.is_busy = True
                    start = int(environment.now)
                    yield from self._together(number, call)
                    link.leave()
            times.calls.append((call, start, int(environment.now)))
            done.put_up(call.number)

    def _together(self, number: int, call: Call) -> Process:
        """A collective starts when the last class of its communicator is there."""
        classes = self.wiring.meets(number, call.comm)
        if len(classes) < 2:
            if call.ns:
                yield self.environment.timeout(call.ns)
            return
        key = (call.comm, call.stream, call.serial, classes)
        meeting = self.meetings.setdefault(key, _Meeting(self.environment))
        meeting.arrived += 1
        if meeting.arrived < len(classes):
            yield meeting.over
            return
        yield self.environment.timeout(call.ns)
        meeting.over.succeed()

    def _message(self, number: int, stream: int, call: Call) -> Process:
        """Send and receive between neighbouring stages: the receiver has it when the sender is done."""
        key = (self.wiring.lane(number), call.layer, call.handle, call.microbatch)
        arrived = self.mail.setdefault(key, self.environment.event())
        if stream == _SEND:
            yield self.environment.timeout(call.ns)
            if not arrived.triggered:
                arrived.succeed()
        elif not arrived.processed:
            yield arrived


@dataclass(eq=False)
class _Meeting:
    environment: simpy.Environment
    arrived: int = 0

    def __post_init__(self) -> None:
        self.over = self.environment.event()


class _Link:
    """One call at a time, first come first served: `simpy.Resource` with events only for those that must queue."""

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
        self.is_busy = False
        self.queue: deque[simpy.Event] = deque()

    def turn(self) -> simpy.Event:
        self.queue.append(self.environment.event())
        return self.queue[-1]

    def leave(self) -> None:
        """The next in the queue goes on at once; the link stays busy for it."""
        if self.queue:
            self.queue.popleft().succeed()
        else:
            self.is_busy = False


class _Flags:
    """Things that happen once, by number; simpy hears only of those that somebody waits for."""

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
        self.up: set[int] = set()
        self.awaited: dict[int, simpy.Event] = {}

    def is_up(self, number: int) -> bool:
        return number in self.up

    def put_up(self, number: int) -> None:
        self.up.add(number)
        if number in self.awaited:
            self.awaited.pop(number).succeed()

    def event(self, number: int) -> simpy.Event:
        if number not in self.awaited:
            self.awaited[number] = self.environment.event()
        return self.awaited[number]
