"""Recordings that no other thread has disturbed: how a disturbance is noticed, and what follows.

[Note: frames that other threads hold]
Lifetimes of storages are reference counts ([Note: lifetimes are reference counts] in `tape`). A thread that looks at
the stacks of others holds their frames for a moment: the profiler of a Dask worker does so every 10 ms (distributed
2026.8.0 `worker.py` trigger_profile, by `sys._current_frames`), and so do other sampling profilers. A frame that
returns meanwhile keeps its local variables, and the storages that only they refer to are freed later, and by that other
thread. So a recording is whole if all frees came from its own thread, and if no storage is left when it is over;
otherwise it is made again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["Census", "census", "undisturbed"]

T = TypeVar("T")
_PAUSES: Final = (0.0, 0.001, 0.002, 0.005, *[0.01] * 100)
"""Seconds before each further try: a look at a stack takes less."""


class Census:
    """Storages of a recording: `living`, and True in `disturbed` if another thread has freed one."""

    __slots__ = ("disturbed", "living", "thread")

    def __init__(self) -> None:
        self.thread, self.living, self.disturbed = threading.get_ident(), 0, False

    def born(self) -> None:
        """Counts a new storage."""
        self.living += 1

    def freed(self) -> None:
        """Counts a storage that is freed, by the calling thread."""
        self.living -= 1
        if threading.get_ident() != self.thread:
            self.disturbed = True


class _Here(threading.local):
    census: Census | None = None


_HERE: Final = _Here()


def census() -> Census:
    """Census of the recording that this thread makes, or a new one outside of `undisturbed`."""
    return _HERE.census or Census()


def undisturbed(record: Callable[[], T]) -> T:
    """Result of `record()`, called again while other threads disturb it. The result refers to no storage.

    RuntimeError if another thread disturbs every try: it holds frames of this one.
    """
    for pause in _PAUSES:
        counted = _HERE.census = Census()
        try:
            result = record()
        finally:
            _HERE.census = None
        if not (counted.living or counted.disturbed):
            return result
        del result
        time.sleep(pause)
    raise RuntimeError("a recording of a layer cannot be made: another thread, such as a profiler or a debugger, holds "
                       "frames of this one")
