"""Threads that hold frames of others change no recording: it is made again, or an error says why it cannot be."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import small
from simcore.program import row_cache
from simcore.recording import undisturbed as module
from simcore.recording.tape import Tape, Tensor
from simcore.recording.undisturbed import undisturbed
from simcore.simulate import simulate


def rows_of_a_call(between: list[object]) -> list[int]:
    """Kinds of rows of a function whose local tensor is freed when it returns, before another one is made."""
    tape = Tape({}, {})

    def called() -> None:
        _local = tape.empty((4,), "bf16", "local")
        if between:
            between.append(sys._getframe())

    called()
    _after = tape.empty((4,), "bf16", "after")
    return [row[0] for row in tape.rows]


def test_a_frame_that_is_held_changes_the_order() -> None:
    """The premise: without a guard the local tensor outlives its function."""
    assert rows_of_a_call([]) == [0, 1, 0]
    assert rows_of_a_call([None]) == [0, 0]


def test_a_disturbed_recording_is_made_again() -> None:
    tries: list[list[object]] = []

    def record() -> list[int]:
        tries.append([None] if len(tries) < 2 else [])
        return rows_of_a_call(tries[-1])

    found = undisturbed(record)
    assert found == [0, 1, 0]
    assert len(tries) == 3


def test_a_free_by_another_thread_is_noticed() -> None:
    """No storage is left then, but the row may be at another place."""
    tries: list[int] = []

    def record() -> int:
        tries.append(0)
        tape, held = Tape({}, {}), list[Tensor]()
        held.append(tape.empty((4,), "bf16", "held"))
        if len(tries) == 1:
            other = threading.Thread(target=held.clear)
            other.start()
            other.join()
        held.clear()
        return len(tape.rows)

    assert undisturbed(record) == 2
    assert len(tries) == 2


def test_a_recording_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.0, 0.0))
    with pytest.raises(RuntimeError, match="another thread, such as a profiler"):
        undisturbed(lambda: rows_of_a_call([None]))


@contextmanager
def sampled() -> Iterator[None]:
    """A thread that holds all frames of this one for a millisecond at a time, as sampling profilers do."""
    ended, watched = threading.Event(), threading.get_ident()

    def sample() -> None:
        while not ended.is_set():
            frame: FrameType | None = sys._current_frames().get(watched)
            held: list[FrameType] = []
            while frame is not None:
                held.append(frame)
                frame = frame.f_back
            time.sleep(0.001)

    interval, thread = sys.getswitchinterval(), threading.Thread(target=sample)
    sys.setswitchinterval(0.0002)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_peaks_are_the_same_under_a_sampling_profiler() -> None:
    def peaks(first: int) -> list[int]:
        asked = (small.scenario("megatron", {"dp_shard": 2}, seq_len=64 * n, recompute=how)
                 for n in range(first, first + 6) for how in ("none", "full"))
        return [rank.peak.allocated_bytes for one in asked for rank in simulate(one, timed=False).ranks if rank.peak]

    with sampled():
        watched = peaks(101)
    for key in list(row_cache._ALL.found):  # recordings are made anew
        row_cache._ALL.drop(key)
    assert peaks(101) == watched
