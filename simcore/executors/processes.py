"""Executor of worker processes on this machine, each with a separate pipe for a chunk at a time and its answers.

Only the worker holds its end of the pipe, so the pipe closes with it, and the parent never waits for a dead worker. A
worker ends with its parent in every case: while it waits, the pipe closes; while it works, a thread watches the parent.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Generic, TypeVar

from simcore.executors.executor import Done, Lost, Open, Result, Unsent, computed
from simcore.executors.interrupts import Interrupts, deaf, withheld

__all__ = ["Processes", "end_with_parent", "processes"]

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_STARTS: Final = 5
"""Number of consecutive workers that end before they are ready, after which no more are started."""


@dataclass(slots=True)
class _Worker:
    """One process; `chunk`: number of the chunk that was sent to it and is not answered."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    chunk: int | None = None
    ready: bool = False


def processes(size: int) -> Open[Any]:
    """Function that opens an executor of up to `size` worker processes; they end with the context."""

    @contextmanager
    def opened(work: Callable[[Any], Any], asked: Interrupts) -> Iterator[Processes[Any, Any]]:
        executor = Processes(work, size, asked)
        try:
            yield executor
        finally:
            executor.cancel()

    return opened


class Processes(Generic[Task, Answer]):
    """Runs `work` on tasks in up to `size` worker processes, which start when there are chunks for them.

    `work` must be picklable, and must not raise. `asked`: recorder of signals.
    """

    def __init__(self, work: Callable[[Task], Answer], size: int, asked: Interrupts) -> None:
        self._work, self._size, self._asked = work, size, asked
        self._todo: deque[tuple[int, Sequence[Task]]] = deque()
        self._workers: list[_Worker] = []
        self._unready = 0
        self._early: list[Result[Answer]] = []

    @property
    def capacity(self) -> int:
        """Number of worker processes there can be; 0 if none can be started."""
        return self._size if self._workers or self._unready < _STARTS else 0

    def submit(self, chunk: int, tasks: Sequence[Task]) -> None:
        """Takes a chunk, for an idle worker or a new one."""
        self._todo.append((chunk, tasks))
        self._hand_out()

    def results(self) -> Sequence[Result[Answer]]:
        """Results that have come, at least one unless a signal was received."""
        while not (found := self._taken()) and not self._asked.number:
            wait([*(worker.pipe for worker in self._workers), self._asked.pipe])
        return found

    def cancel(self) -> None:
        """Ends all worker processes."""
        self._todo.clear()
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _taken(self) -> Sequence[Result[Answer]]:
        """Results that are there; workers that have become ready or idle get chunks before anything is waited for."""
        found = [result for worker in [*self._workers] for result in self._received(worker)]
        self._hand_out()
        early, self._early = self._early, []
        return [*early, *found]

    def _hand_out(self) -> None:
        """Sends chunks to idle workers, and starts workers while there are more chunks than workers."""
        for worker in [worker for worker in self._workers if worker.ready and worker.chunk is None]:
            self._send(worker)
        idle = sum(worker.chunk is None for worker in self._workers)
        while idle < len(self._todo) and len(self._workers) < self._size and self._unready < _STARTS:
            idle += self._start()
        if not self._workers:
            self._early += (Lost(chunk) for chunk, _ in self._todo)
            self._todo.clear()

    def _send(self, worker: _Worker) -> None:
        while self._todo:
            chunk, tasks = self._todo.popleft()
            try:
                worker.pipe.send(tasks)
            except OSError:  # it is dead: the chunk is lost when its pipe ends
                pass
            except Exception as error:  # noqa: BLE001 - whatever pickling says
                self._early.append(Unsent(chunk, f"{type(error).__name__}: {error}"))
                continue
            worker.chunk = chunk
            return

    def _received(self, worker: _Worker) -> Iterator[Result[Answer]]:
        """Result that a worker has sent, or the loss of its chunk where its pipe has ended."""
        try:
            while worker.pipe.poll():
                got: tuple[list[Answer], float] | str | None = worker.pipe.recv()
                worker.ready, self._unready = True, 0
                if got is None or worker.chunk is None:
                    continue
                chunk, worker.chunk = worker.chunk, None
                yield Unsent(chunk, got) if isinstance(got, str) else Done(chunk, *got)
        except (EOFError, OSError):
            self._end(worker)
            self._unready += not worker.ready
            if worker.chunk is not None:
                yield Lost(worker.chunk)

    def _start(self) -> bool:
        """True if a worker could be started."""
        try:
            ours, its = multiprocessing.Pipe()
        except OSError:  # no more open files are allowed
            self._unready += 1
            return False
        # `spawn` is the same on all systems, and safe with the threads of numerical libraries.
        started = multiprocessing.get_context("spawn")
        process = started.Process(target=_serve, args=(its, self._work), daemon=True)
        try:
            with withheld():
                process.start()
        except OSError:
            self._unready += 1
            ours.close()
            return False
        finally:
            its.close()
        self._workers.append(_Worker(process, ours))
        return True

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Main function of a worker."""
    deaf()
    end_with_parent()
    with suppress(EOFError, OSError):  # the parent is gone
        pipe.send(None)
        while True:
            _answer(pipe, computed(work, pipe.recv()))


def _answer(pipe: Connection, answer: object) -> None:
    try:
        pipe.send(answer)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever pickling says
        pipe.send(f"{type(error).__name__}: {error}")


def end_with_parent() -> None:
    """Starts a thread that ends this process when its parent has ended, also while it works."""
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
