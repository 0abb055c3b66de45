"""Worker processes: no chunk waits while a worker is idle, however messages arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from simcore.executors.executor import Done, Result
from simcore.executors.interrupts import Interrupts, interrupts
from simcore.executors.processes import Processes

WITHIN = 60.0
"""Seconds in which a worker starts and answers, on a machine where others work too."""


def negative(task: int) -> int:
    """Work of a task; a worker imports it."""
    return -task


def result(executor: Processes[int, int], asked: Interrupts) -> Sequence[Result[int]]:
    """Next results of an executor. AssertionError if it waits for ever."""
    found: list[Result[int]] = []
    waiting = threading.Thread(target=lambda: found.extend(executor.results()), daemon=True)
    waiting.start()
    waiting.join(WITHIN)
    if waiting.is_alive():
        asked.note(15, None)  # ends its waiting
        waiting.join(WITHIN)
        raise AssertionError("the driver waits, and all workers are idle")
    return found


def answered(executor: Processes[int, int], asked: Interrupts, count: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    while len(found) < count:
        for one in result(executor, asked):
            assert isinstance(one, Done)
            found[one.chunk] = list(one.answers)
    return found


def ready(executor: Processes[int, int]) -> None:
    """Waits until all workers have said that they are ready, and nothing has read it."""
    end = time.monotonic() + WITHIN
    while not all(worker.pipe.poll() for worker in executor._workers):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_workers_that_are_ready_at_the_same_time_get_their_chunks() -> None:
    with interrupts() as asked:
        executor = Processes(negative, 2, asked)
        try:
            executor.submit(0, [1, 2])
            executor.submit(1, [3])
            ready(executor)
            assert answered(executor, asked, 2) == {0: [-1, -2], 1: [-3]}
        finally:
            executor.cancel()


def test_a_worker_that_is_lost_before_its_first_chunk_costs_nothing() -> None:
    with interrupts() as asked:
        executor = Processes(negative, 2, asked)
        try:
            executor.submit(0, [1])
            executor.submit(1, [2])
            ready(executor)
            executor._workers[0].process.kill()
            executor._workers[0].process.join()
            assert answered(executor, asked, 2) == {0: [-1], 1: [-2]}
        finally:
            executor.cancel()


def test_no_worker_is_left_behind() -> None:
    with interrupts() as asked:
        executor = Processes(negative, 2, asked)
        executor.submit(0, [1])
        answered(executor, asked, 1)
        started = [worker.process for worker in executor._workers]
        executor.cancel()
    assert started
    assert not any(process.is_alive() for process in started)
