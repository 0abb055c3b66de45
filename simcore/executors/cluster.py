"""Parts that executors of all clusters share: the address, patience, words for what went wrong."""

from __future__ import annotations

import importlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.executors.executor import Result, Unsent
from simcore.executors.interrupts import Interrupts
from simcore.executors.remote import Packer

__all__ = ["PATIENCE", "Chunks", "answering", "expect_reached", "first_line", "library", "own_signals"]

PATIENCE: Final = 20.0
"""Seconds to wait for an answer of a cluster, and for its first worker."""
_LOOK: Final = 0.2
"""Seconds between two looks for a signal."""
_WITHOUT: Final = 60.0
"""Seconds without any worker after which a run ends: a cluster may be replacing one."""
_NEWS: Final = 2.0
"""Seconds for which a number of workers is believed."""
_AHEAD: Final = 2
"""Chunks in flight for each worker: one at work, one on its way."""


def library(name: str, extra: str, place: str) -> Any:
    """Module of an optional dependency; InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        message = f"needs {name}, which is not installed: pip install 'rankscope[{extra}]'"
        raise InputError(Problem(place, message)) from None


def expect_reached(host: str, port: int, place: str, *, speaks: bool = False) -> None:
    """Raises InputError unless something answers at that port. `speaks`: it says something before it is asked."""
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as there:
            if speaks and not there.recv(1):
                raise OSError("it closes the connection")
    except OSError as error:
        why = (error.strerror or str(error) or "no answer").lower()
        raise InputError(Problem(place, f"the cluster cannot be reached: {why}")) from None


def first_line(error: BaseException) -> str:
    """Type and first line of an error; messages of clusters have tracebacks."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


class _Workers:
    """Number of workers of a cluster, asked for now and then by `count`, and the end of patience without any."""

    def __init__(self, count: Callable[[], int], place: str) -> None:
        self._count, self._place = count, place
        self._number, self._asked, self._seen = 1, 0.0, time.monotonic()

    @property
    def room(self) -> int:
        """Chunks that the cluster takes at a time."""
        self.look()
        return max(1, self._number) * _AHEAD

    def look(self) -> None:
        """Asks again if the number is old. InputError if there has been no worker for a minute."""
        now = time.monotonic()
        if now - self._asked < _NEWS:
            return
        self._number, self._asked = self._count(), now
        if self._number:
            self._seen = now
        elif now - self._seen > _WITHOUT:
            raise InputError(Problem(self._place, f"the cluster has had no worker for {_WITHOUT:.0f} s"))


class Chunks:
    """Chunks on their way to a cluster and back: packed, and waited for as long as the cluster has workers.

    `count`: asks for the number of workers; `asked`: recorder of signals, which end the waiting; `place`: name of the
    cluster for messages.
    """

    def __init__(self, work: Callable[[Any], Any], count: Callable[[], int], asked: Interrupts, place: str) -> None:
        self._packer, self._asked = Packer(work), asked
        self._unsent: list[Unsent] = []
        self._workers = _Workers(count, place)

    @property
    def room(self) -> int:
        """Chunks that keep all workers busy."""
        return self._workers.room

    def packed(self, chunk: int, tasks: Sequence[Any]) -> bytes | None:
        """A chunk as bytes for `remote.served`; None for one that cannot be sent, which is a result."""
        packed = self._packer.packed(chunk, tasks)
        if isinstance(packed, Unsent):
            self._unsent.append(packed)
            return None
        return packed

    def results(self, ready: Callable[[float], list[Result[Any]]]) -> Sequence[Result[Any]]:
        """Results that have come, at least one unless a signal was received.

        `ready(seconds)`: results that the cluster has, after a wait of so long if it has none; after 0 s all of them.
        """
        found: list[Result[Any]] = [*self._unsent]
        self._unsent.clear()
        while not found and not self._asked.number:
            self._workers.look()
            found += ready(_LOOK)
        return [*found, *ready(0)]


@contextmanager
def answering(place: str) -> Iterator[None]:
    """Context in which any error means that the cluster does not answer: an InputError at `place`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever the library says
        raise InputError(Problem(place, f"the cluster has gone: {first_line(error)}")) from None


@contextmanager
def own_signals() -> Iterator[None]:
    """Context at whose end the handlers of signals are those of its start, whatever a library has set."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
