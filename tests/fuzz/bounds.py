"""Time and memory of one case: what takes more than a person would wait, or a small machine has, is a fault."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["BYTES", "SECONDS", "WALL", "TooLong", "bounded"]

SECONDS: Final = 20.0
"""Seconds of the processor, so that a busy machine changes nothing."""
BYTES: Final = 2**30
"""Bytes of address space, beyond what the process has before."""
WALL: Final = 120.0
"""Seconds of the clock after which a waiting case ends; several times what it needs on a busy machine."""


class TooLong(BaseException):
    """A case took longer than it may. No `except Exception` on the way takes it."""


@contextmanager
def bounded(seconds: float = SECONDS, num_bytes: int = BYTES) -> Iterator[None]:
    """TooLong after so many seconds, MemoryError beyond so many bytes. For the main thread of a process."""
    signals = (signal.SIGPROF, signal.SIGALRM)
    before = [signal.signal(number, _too_long) for number in signals]
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + num_bytes, limits[1]))
    # again each second: an exception inside a finalizer is lost
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    signal.setitimer(signal.ITIMER_REAL, WALL, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _too_long(number: int, frame: object) -> None:
    raise TooLong


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
