"""The timeline: tracks of all rank classes run on concurrent streams and shared links, in simpy.

Input: `RankStreams` per class, and `Communicators`: which classes meet in which communicator, and over which links.
Output: `ClassTimes` in integer nanoseconds. One process a stream; a `_Link` only where two streams of a rank share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Generic, Protocol, TypeVar

import simpy
from simpy.events import EventPriority

from simcore.recording.tape import Stream
from simcore.timing.dependencies import CollectiveCall
from simcore.timing.streams import RankStreams

__all__ = ["ClassTimes", "Communicators", "Deadlock", "rendezvous_key", "run"]

_SEND = int(Stream.SEND)
_MESSAGES = (_SEND, int(Stream.RECEIVE))
_AFTER_NEWS = 2
"""Priorities of simpy's own events are 0 and 1."""
Process = Generator[simpy.Event, Any, None]
Name = TypeVar("Name")


class Communicators(Protocol):
    """Connections of the classes of ranks in one job; ranks of one class run the same program.

    `number` is the index of a class; `comm` is the index that the class's own program gives a communicator.
    """

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        """Indices of all classes with ranks in that communicator, the class itself included."""

    def name(self, number: int, comm: int) -> str:
        """Name of that communicator, common to its classes: each program numbers its own in order of use."""

    def link(self, number: int, comm: int) -> str:
        """Name of the link that the communicator crosses.

        If several streams of a rank use one link, their calls run one after another.
        """

    def lane(self, number: int) -> int:
        """Position of the class in its pipeline stage.

        Classes at the same position of neighbouring stages exchange messages.
        """


@dataclass(eq=False)
class ClassTimes:
    """Times of one class of ranks (with the same program) on the timeline, in ns from the step's start.

    `item_ends`: end of each compute item (kernels up to a wait or a call); `waited_at`: how long it then waited for a
    call or ran one; `idle_at`: how long its kernels waited for the host; `calls`: (call, start, end) of each call,
    those of each stream in order.
    """

    item_ends: list[int] = field(default_factory=list)
    waited_at: list[int] = field(default_factory=list)
    idle_at: list[int] = field(default_factory=list)
    calls: list[tuple[CollectiveCall, int, int]] = field(default_factory=list)

    @cached_property
    def end(self) -> int:
        """End in ns of the last item or call of this class; valid when the timeline has run."""
        last_call = max((end for _, _, end in self.calls), default=0)
        return max(self.item_ends[-1] if self.item_ends else 0, last_call)


class Deadlock(AssertionError):
    """Raised if streams wait for an event that never happens.

    It is a fault of execution graphs or communicators, not of the input.
    """


def run(tracks: Sequence[RankStreams], wiring: Communicators) -> list[ClassTimes]:
    """Times of each class, in the order of `tracks`, when all their streams have run to the end together.

    Raises `Deadlock` if some of them cannot end.
    """
    machine = _Machine(tracks, wiring)
    machine.environment.run()
    waiting = [f"class {number}, stream {Stream(stream).name.lower()}: waits for {_awaited(process.target)}"
               for (number, stream), process in machine.streams.items() if process.is_alive]
    if waiting:
        raise Deadlock(f"the timeline ended, but {len(waiting)} of {len(machine.streams)} streams wait: "
                       + "; ".join(waiting))
    return machine.times


def _awaited(event: simpy.Event | None) -> str:
    return event.what() if isinstance(event, _Awaited) else repr(event)


def rendezvous_key(wiring: Communicators, number: int, call: CollectiveCall) -> str:
    """Text that is equal for the parts of one call in all classes that take part.

    `number`: index of the class. "" if only one class takes part in a collective; a message between stages always has a
    text. `_Machine` matches the parts of a call by the same values.
    """
    if call.stream in _MESSAGES:
        return f"message {wiring.lane(number)} {call.layer} {call.handle} {call.microbatch}"
    classes = wiring.meets(number, call.comm)
    return f"call {wiring.name(number, call.comm)} {call.stream} {call.serial} {classes[0]}" if classes[1:] else ""


class _Machine:
    def __init__(self, tracks: Sequence[RankStreams], wiring: Communicators) -> None:
        self.environment = simpy.Environment()
        self.wiring, self.meets = wiring, lru_cache(maxsize=None)(wiring.meets)
        self.alone = lru_cache(maxsize=None)(lambda number, comm: len(wiring.meets(number, comm)) < 2)
        self.times = [ClassTimes() for _ in tracks]
        self.meetings: dict[object, _Meeting] = {}
        self.mail = _Dates[tuple[int, int, int, int]](self.environment, "message (lane, layer, handle, microbatch)")
        self.streams: dict[tuple[int, int], simpy.Process] = {}
        for number, track in enumerate(tracks):
            self._start(number, track)

    def _start(self, number: int, track: RankStreams) -> None:
        done, gates = _Dates[int](self.environment, "call"), _Dates[int](self.environment, "compute item")
        shared, begin = self._shared_links(number, track), self.environment.process
        for stream, calls in track.skeleton.calls.items():
            handle = self._messages if stream in _MESSAGES else self._calls
            self.streams[number, stream] = begin(handle(number, calls, track.call_ns, done, gates, shared))
        self.streams[number, int(Stream.COMPUTE)] = begin(self._compute(number, track, done, gates))

    def _shared_links(self, number: int, track: RankStreams) -> dict[int, _Link]:
        """Links on which several streams of a rank send, by the communicators that cross them."""
        users: dict[str, set[int]] = {}
        crossed: dict[int, str] = {}
        for stream, calls in track.skeleton.calls.items():
            for comm in dict.fromkeys(c.comm for c in calls):
                crossed[comm] = self.wiring.link(number, comm)
                users.setdefault(crossed[comm], set()).add(stream)
        links = {link: _Link(self.environment) for link, streams in users.items() if len(streams) > 1}
        return {comm: links[link] for comm, link in crossed.items() if link in links}

    # ---- processes ----------------------------------------------------------------------------------------------
    def _compute(self, number: int, track: RankStreams, done: _Dates[int], gates: _Dates[int]) -> Process:
        """Runs the items of the compute stream one after another."""
        times, watched, known, now, host = self.times[number], track.skeleton.watched, done.known, 0, 0
        for place, (ns, busy, tail, (_, call, wait_for, stops, message)) in enumerate(zip(
                track.item_ns, track.host_ns, track.host_tail, track.skeleton.items, strict=True)):
            before = now + ns
            issued = host + tail
            times.idle_at.append(issued - before if issued > before else 0)
            now = before = before if before > issued else issued
            host += busy
            if stops and track.stops and host < now:
                host = now
            if call is not None:
                if self.alone(number, call.comm):
                    now = before + track.call_ns[call.number]
                else:
                    now = yield from self._together(number, call, track.call_ns[call.number], before)
                times.calls.append((call, before, now))
            elif wait_for >= 0:
                if wait_for not in known:
                    yield done.news(wait_for)
                now = max(now, known[wait_for])
            times.waited_at.append(now - before)
            times.item_ends.append(now)
            if place in watched:
                gates.tell(place, now)
            if message >= 0 and track.stops_at_messages:
                if message not in known:
                    yield done.news(message)
                host = max(host, now, known[message])

    def _calls(self, number: int, calls: Sequence[CollectiveCall], call_ns: Sequence[int], done: _Dates[int],
               gates: _Dates[int], shared: dict[int, _Link]) -> Process:
        """Runs collectives one after another. A shared link is requested when it is due, as others may come first."""
        now, known, finished = 0, gates.known, self.times[number].calls
        for call in calls:
            gate = call.gate
            if gate >= 0:
                if gate not in known:
                    yield gates.news(gate)
                now = max(now, known[gate])
            if call.follows >= 0:
                if call.follows not in done.known:
                    yield done.news(call.follows)
                now = max(now, done.known[call.follows])
            start, link = now, shared.get(call.comm)
            if link is not None:
                yield _Due(self.environment, now, call.number)
                if link.is_taken:
                    yield link.turn()
                start = max(now, link.free_at)
                link.is_taken = True
            if self.alone(number, call.comm):
                now = start + call_ns[call.number]
            else:
                now = yield from self._together(number, call, call_ns[call.number], start)
            if link is not None:
                link.leave(now)
            finished.append((call, start, now))
            done.tell(call.number, now)

    def _together(self, number: int, call: CollectiveCall, ns: int, ready: int) -> Generator[simpy.Event, Any, int]:
        """Time at which a collective ends. It starts when the last class of its communicator is ready."""
        classes = self.meets(number, call.comm)
        key = (self.wiring.name(number, call.comm), call.stream, call.serial, classes)
        if (meeting := self.meetings.get(key)) is None:
            meeting = self.meetings[key] = _Meeting(self.environment, key)
        meeting.start, meeting.ns = max(meeting.start, ready), max(meeting.ns, ns)
        meeting.arrived.append(number)
        if len(meeting.arrived) < len(classes):
            yield meeting.over
        else:
            meeting.over.succeed()
        return meeting.start + meeting.ns

    def _messages(self, number: int, calls: Sequence[CollectiveCall], call_ns: Sequence[int], done: _Dates[int],
                  gates: _Dates[int], _: object) -> Process:
        """Sends and receives between neighbouring stages: a message has arrived when its sender is done."""
        now, lane = 0, self.wiring.lane(number)
        for call in calls:
            if call.gate >= 0:
                if call.gate not in gates.known:
                    yield gates.news(call.gate)
                now = max(now, gates.known[call.gate])
            start, key = now, (lane, call.layer, call.handle, call.microbatch)
            if call.stream == _SEND:
                now += call_ns[call.number]
                self.mail.tell(key, now)
            else:
                if key not in self.mail.known:
                    yield self.mail.news(key)
                now = max(now, self.mail.known[key])
            self.times[number].calls.append((call, start, now))
            done.tell(call.number, now)


class _Awaited(simpy.Event):
    """An event with a description, for the message of a deadlock."""

    def __init__(self, environment: simpy.Environment, what: Callable[[], str]) -> None:
        super().__init__(environment)
        self.what = what


@dataclass(eq=False)
class _Meeting:
    """A collective of several classes. `key`: communicator, stream, serial, classes. `ns`: that of the largest part."""

    environment: simpy.Environment
    key: tuple[str, int, int, tuple[int, ...]]
    arrived: list[int] = field(default_factory=list)
    start: int = 0
    ns: int = 0

    def __post_init__(self) -> None:
        self.over = _Awaited(self.environment, self._text)

    def _text(self) -> str:
        comm, _, serial, classes = self.key
        return f"classes {sorted({*classes} - {*self.arrived})} in call {serial} of communicator {comm}"


class _Due(simpy.Event):
    """An event at a date. Events due at one moment run in order of issue, after all notifications of that moment.

    Written like `simpy.Timeout`, which has no priority (simpy 4.1 `events.py`, `core.py` schedule).
    """

    def __init__(self, environment: simpy.Environment, date: int, number: int) -> None:
        self.env, self.callbacks, self._ok, self._value = environment, [], True, None
        environment.schedule(self, EventPriority(_AFTER_NEWS + number), date - environment.now)


class _Link:
    """A link with one call at a time, first come first served. Taken: by a call whose end is not yet known."""

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
        self.is_taken = False
        self.free_at = 0
        self.queue: deque[simpy.Event] = deque()

    def turn(self) -> simpy.Event:
        self.queue.append(_Awaited(self.environment, lambda: "a link that another stream has taken"))
        return self.queue[-1]

    def leave(self, end: int) -> None:
        """Frees the link at `end`, now known, for the next call in the queue."""
        self.free_at = end
        self.is_taken = bool(self.queue)
        if self.queue:
            self.queue.popleft().succeed()


class _Dates(Generic[Name]):
    """Dates of events that happen once. A date is recorded as soon as it is known, often before its time has come.

    So a stream that depends only on known dates runs ahead, and simpy schedules only streams that wait for unknown
    dates.
    """

    def __init__(self, environment: simpy.Environment, kind: str) -> None:
        self.environment, self.kind = environment, kind
        self.known: dict[Name, int] = {}
        self.awaited: dict[Name, simpy.Event] = {}

    def tell(self, name: Name, date: int) -> None:
        self.known.setdefault(name, date)
        if (event := self.awaited.pop(name, None)) is not None:
            event.succeed()

    def news(self, name: Name) -> simpy.Event:
        if name not in self.awaited:
            self.awaited[name] = _Awaited(self.environment, lambda: f"{self.kind} {name}")
        return self.awaited[name]
