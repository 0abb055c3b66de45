"""Ctrl-C and SIGTERM while a batch runs: the first one is polled and ends the batch, a second one ends it at once."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Final

__all__ = ["Interrupts", "deaf", "interrupts", "withheld"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Recorder of Ctrl-C (SIGINT) and SIGTERM during one run. `number`: the first signal's number, 0 before any.

    `pipe`: a connection that becomes readable with the first signal, for callers that wait on several connections.
    """

    def __init__(self) -> None:
        self.pipe, self._writer = multiprocessing.Pipe(duplex=False)
        self.number = 0

    @property
    def code(self) -> int:
        """Exit code that shells expect: 130 after Ctrl-C, 143 after SIGTERM; 0 without a signal."""
        return 128 + self.number if self.number else 0

    def note(self, number: int, _frame: object) -> None:
        """Signal handler: records the first signal and returns; a second one raises KeyboardInterrupt.

        The first one raises nothing, because Python loses exceptions inside a finalizer.
        """
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        self._writer.send_bytes(b"!")

    def close(self) -> None:
        """Closes both ends of the pipe."""
        for end in (self.pipe, self._writer):
            end.close()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Context in which the first Ctrl-C or SIGTERM is recorded in the yielded object and raises nothing.

    A second one raises KeyboardInterrupt. Signals that the parent process ignores (`nohup`, `&`) stay ignored. The
    former handlers are set again at the end.
    """
    asked = Interrupts()
    before = {number: signal.getsignal(number) for number in _ENDING}
    heard = [number for number in _ENDING if before[number] not in (signal.SIG_IGN, None)]
    for number in heard:
        signal.signal(number, asked.note)
    try:
        yield asked
    finally:
        for number in heard:
            signal.signal(number, before[number])
        asked.close()


@contextmanager
def withheld() -> Iterator[None]:
    """Context in which Ctrl-C is blocked, for this process and for those started inside, which inherit it.

    A Ctrl-C in the meantime is delivered to this process at the end. No effect on Windows.
    """
    if sys.platform == "win32":
        yield
        return
    # The first process that is spawned starts multiprocessing's resource tracker before it, which unblocks Ctrl-C.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def deaf() -> None:
    """Makes this process ignore Ctrl-C; called by worker processes, which their parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
