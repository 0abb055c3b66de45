"""Ctrl-C and SIGTERM while a batch runs: the first is asked for when it suits, a second one ends at once."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Interrupts", "deaf", "interrupts", "withheld"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """What came so far. `pipe` is readable from the first signal on, for those who wait for several things."""

    def __init__(self) -> None:
        self.pipe, self._told = multiprocessing.Pipe(duplex=False)
        self.number = 0

    @property
    def code(self) -> int:
        """The exit code that shells expect: 130 after Ctrl-C, 143 after SIGTERM; 0 without a signal."""
        return 128 + self.number if self.number else 0

    def note(self, number: int, _frame: object) -> None:
        """Takes a signal. Python loses what is raised inside a finalizer, so the first one raises nothing."""
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        self._told.send_bytes(b"!")

    def close(self) -> None:
        """Gives both ends of the pipe back."""
        for end in (self.pipe, self._told):
            end.close()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Signals that whoever started us lets us ignore (`nohup`, a shell's `&`) stay ignored."""
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
    """Processes started inside do not get Ctrl-C, from their first instruction on; here it is delivered afterwards."""
    if sys.platform == "win32":
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def deaf() -> None:
    """In a worker: Ctrl-C is for the parent, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
