"""A warm worker process, and the questions that wait for it: of each tab and kind only the newest.

A question that is replaced by a newer one of the same tab and kind fails with `Superseded`, also while it is computed.
A worker that does not answer in time, or dies, is replaced; its question fails with `Lost`.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from simcore.errors import Problem
from simcore.executors.interrupts import withheld
from simcore.studio.worker import problems_json, serve

__all__ = ["Lane", "Lost", "Refused", "Superseded"]

_MOST_WAITING: Final = 256
"""Questions that wait at most, far more than the tabs of one person ask."""


class Superseded(Exception):
    """Raised for a question that a newer one of the same tab replaced."""


class Lost(Exception):
    """Raised for a question whose worker hung or died; another worker is there."""


class Refused(Exception):
    """Raised for a question that has no answer; `problems`: place, message and rule of each, as JSON text."""

    def __init__(self, problems: bytes) -> None:
        super().__init__(problems.decode())
        self.problems = problems


@dataclass(slots=True)
class _Asked:
    """A question that waits or is computed."""

    kind: str
    fields: Mapping[str, Any]
    answer: Future[bytes] = field(default_factory=Future)


class Lane:
    """One worker process with its queue. `order`: kinds of questions, the first kind is computed first.

    `limit_s`: seconds after which a worker that does not answer is replaced. `warm`: a worker simulates a small job as
    it starts, so that the first question is answered as fast as later ones.
    """

    def __init__(self, order: Sequence[str], limit_s: float = 60.0, *, warm: bool = True) -> None:
        self._order, self._limit_s, self._warm = list(order), limit_s, warm
        self._waiting: dict[tuple[str, str], _Asked] = {}
        self._running: tuple[tuple[str, str], _Asked] | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def ask(self, tab: str, kind: str, fields: Mapping[str, Any]) -> Future[bytes]:
        """Takes a question of a tab; older ones of the same tab and kind fail with Superseded."""
        asked = _Asked(kind, fields)
        with self._changed:
            older = self._waiting.pop((tab, kind), None)
            running = self._running
            if self._closed or len(self._waiting) >= _MOST_WAITING:
                asked.answer.set_exception(Lost("too many questions wait"))
            else:
                self._waiting[tab, kind] = asked
            self._changed.notify()
        if running is not None and running[0] == (tab, kind):
            _fail(running[1], Superseded())
        if older is not None:
            _fail(older, Superseded())
        return asked.answer

    def close(self) -> None:
        """Ends the worker process; what waits fails with Lost."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting.values()), {}
            self._changed.notify()
        for asked in waiting:
            _fail(asked, Lost("the studio ends"))
        self._end()
        self._thread.join(5)

    def _work(self) -> None:
        with suppress(Exception):  # the first question tries again
            self._start()
        while (taken := self._next()) is not None:
            self._running = taken
            try:
                self._compute(taken[1])
            except Exception as error:  # noqa: BLE001 - a question that cannot be sent costs itself, not the lane
                self._end()
                told = Problem("", f"bug in rankscope: {type(error).__name__}: {error}")
                _fail(taken[1], Refused(problems_json([told])))
            finally:
                self._running = None

    def _next(self) -> tuple[tuple[str, str], _Asked] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            key = min(self._waiting, key=lambda one: self._order.index(one[1]))
            return key, self._waiting.pop(key)

    def _compute(self, asked: _Asked) -> None:
        """Sends a question to the worker and settles its answer."""
        for is_last in (False, True):
            try:
                pipe = self._pipe or self._start()
                pipe.send((asked.kind, asked.fields))
                if not pipe.poll(self._limit_s):
                    self._end()
                    return _fail(asked, Lost(f"no answer within {self._limit_s:g} s"))
                word, content = pipe.recv()
            except (EOFError, OSError):
                self._end()
                if is_last or self._closed:
                    return _fail(asked, Lost("the process that simulates died"))
                continue
            return _fail(asked, Refused(content)) if word == "refused" else _settle(asked, content)
        return None

    def _start(self) -> Connection:
        ours, its = multiprocessing.Pipe()
        # `spawn` is the same on all systems, and safe with the threads of numerical libraries.
        started = multiprocessing.get_context("spawn")
        process = started.Process(target=serve, args=(its,), kwargs={"warm": self._warm}, daemon=True)
        with withheld():
            process.start()
        its.close()
        self._process, self._pipe = process, ours
        return ours

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is not None:
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()


def _fail(asked: _Asked, error: Exception) -> None:
    with suppress(Exception):  # it was settled before
        asked.answer.set_exception(error)


def _settle(asked: _Asked, content: bytes) -> None:
    with suppress(Exception):  # a newer question came meanwhile
        asked.answer.set_result(content)
