"""A pool of worker processes, each with a separate pipe for a few tasks at a time and for each answer.

The parent knows the tasks of every worker, so a worker that dies (out of memory, a crash in a library) interrupts one
task: it is tried again, and its other tasks go to other workers. Only the worker holds its end of the pipe, so the pipe
closes with it, and the parent never waits for a dead worker. A worker ends with its parent in every case: while it
waits, the pipe closes; while it works, a thread watches the parent.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Generic, TypeVar

from simcore.batch.interrupts import Interrupts, deaf, withheld

__all__ = ["Crew", "Died", "Unsent"]

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_CHUNK: Final = 8
"""Most tasks in one message to a worker: few enough that no worker idles long at the end."""

_TRIES: Final = 3
"""Deaths of workers at one task before it is given up. The last try waits until all other workers are idle."""

_STARTS: Final = 5
"""Number of consecutive workers that end before they are ready, after which no more are started."""


@dataclass(frozen=True, slots=True)
class Died:
    """Answer to one task at which three worker processes died, one after the other."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """Answer to one task that could not be sent to a worker, or whose own answer could not be sent back.

    `why`: text of the error.
    """

    why: str


@dataclass(slots=True)
class _Worker:
    """One process; `has`: tasks that were sent to it and are not answered, the current one first."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    has: deque[int] = field(default_factory=deque)
    ready: bool = False


class Crew(Generic[Task, Answer]):
    """Runs `work` on each of `tasks` in up to `size` worker processes; a context whose end kills them all.

    `work` must be picklable, and must not raise. `asked`: recorder of signals; the first signal ends the run.
    """

    def __init__(self, tasks: Sequence[Task], work: Callable[[Task], Answer], size: int, asked: Interrupts) -> None:
        self._tasks, self._work, self._size, self._asked = tasks, work, size, asked
        # Several chunks a worker, so that no worker idles long at the end.
        chunk = max(1, min(_CHUNK, len(tasks) // (4 * size)))
        self._todo = deque([*range(i, min(i + chunk, len(tasks)))] for i in range(0, len(tasks), chunk))
        self._alone: deque[int] = deque()
        self._deaths: Counter[int] = Counter()
        self._workers: list[_Worker] = []
        self._unready = 0

    def __enter__(self) -> Crew[Task, Answer]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def answers(self) -> Iterator[tuple[int, Answer | Died | Unsent]]:
        """Pairs (index of a task, its answer), in the order in which they come; at most one for each task.

        Ends when all tasks are answered; after a signal in `asked`, with the answers that are finished; and if no
        process can be started, with the remaining tasks in `left`.
        """
        while not self._asked.number:
            yield from self._hand_out()
            if not self._workers:
                return
            for pipe in wait([*(worker.pipe for worker in self._workers), self._asked.pipe]):
                yield from (got for worker in self._workers if worker.pipe is pipe for got in self._received(worker))
        for worker in [*self._workers]:
            yield from self._received(worker)

    @property
    def left(self) -> list[int]:
        """Indices, ascending, of tasks that wait to be sent to a worker."""
        return sorted(index for chunk in (*self._todo, self._alone) for index in chunk)

    def _hand_out(self) -> Iterator[tuple[int, Unsent]]:
        """Sends tasks to idle workers, and starts workers while there are more tasks than workers."""
        for worker in [worker for worker in self._workers if worker.ready and not worker.has]:
            yield from self._send(worker)
            if not worker.has:
                self._end(worker)
        working = sum(bool(worker.has) for worker in self._workers)
        wanted = min(self._size, working + len(self._todo)) or min(1, len(self._alone))
        while len(self._workers) < wanted and self._unready < _STARTS:
            self._start()

    def _send(self, worker: _Worker) -> Iterator[tuple[int, Unsent]]:
        while chunk := self._next():
            try:
                worker.pipe.send([(index, self._tasks[index]) for index in chunk])
            except OSError:  # it is dead; its tasks go to others when its pipe ends
                pass
            except Exception as error:  # noqa: BLE001 - whatever pickling says
                if len(chunk) == 1:
                    yield chunk[0], Unsent(f"{type(error).__name__}: {error}")
                else:
                    self._todo.extendleft([index] for index in reversed(chunk))
                continue
            worker.has.extend(chunk)
            return

    def _next(self) -> list[int]:
        if self._todo:
            return self._todo.popleft()
        if self._alone and not any(worker.has for worker in self._workers):
            return [self._alone.popleft()]
        return []

    def _received(self, worker: _Worker) -> Iterator[tuple[int, Answer | Died | Unsent]]:
        """Answers that a worker has sent; when its pipe has ended, its unanswered tasks are handed out again."""
        try:
            while worker.pipe.poll():
                got: tuple[int, Answer | Unsent] | None = worker.pipe.recv()
                worker.ready, self._unready = True, 0
                if got is not None:
                    worker.has.popleft()
                    yield got
        except (EOFError, OSError):
            self._end(worker)
            self._unready += not worker.ready
            yield from self._settled(worker.has)

    def _settled(self, has: deque[int]) -> Iterator[tuple[int, Died]]:
        """Hands out the tasks of a dead worker; the first is the one that it was working on."""
        if not has or self._asked.number:
            return
        at, *rest = has
        if rest:
            self._todo.appendleft(rest)
        self._deaths[at] += 1
        if self._deaths[at] == _TRIES:
            yield at, Died()
        elif self._deaths[at] == _TRIES - 1:
            self._alone.append(at)
        else:
            self._todo.appendleft([at])

    def _start(self) -> None:
        try:
            ours, its = multiprocessing.Pipe()
        except OSError:  # no more open files are allowed
            self._unready += 1
            return
        # `spawn` is the same on all systems, and safe with the threads of numerical libraries.
        started = multiprocessing.get_context("spawn")
        process = started.Process(target=_serve, args=(its, self._work, gc.get_threshold()), daemon=True)
        try:
            with withheld():
                process.start()
        except OSError:
            self._unready += 1
            ours.close()
        else:
            self._workers.append(_Worker(process, ours))
        finally:
            its.close()

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _serve(pipe: Connection, work: Callable[[Any], Any], thresholds: tuple[int, int, int]) -> None:
    """Main function of a worker."""
    deaf()
    threading.Thread(target=_watch_parent, daemon=True).start()
    gc.set_threshold(*thresholds)
    with suppress(EOFError, OSError):  # the parent is gone
        pipe.send(None)
        while True:
            for index, task in pipe.recv():
                _answer(pipe, index, work(task))


def _answer(pipe: Connection, index: int, answer: object) -> None:
    try:
        pipe.send((index, answer))
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever pickling says
        pipe.send((index, Unsent(f"{type(error).__name__}: {error}")))


def _watch_parent() -> None:
    """Ends this process when its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
