"""The driver of an executor: cuts tasks into chunks, keeps few of them in flight, and gives out what a worker lost.

[Note: size of chunks]
A chunk is to take about a second: long beside the way to a worker and back, short beside the wait for the slowest one
at the end. Seconds are measured by the workers, smoothed over chunks, and the size at most doubles from one chunk to
the next, so that a cheap start does not promise too much. Towards the end chunks get smaller, so that all workers end
together.

[Note: lost chunks]
Nothing says which task of a lost chunk was at work, so it is cut into smaller chunks, down to single tasks. A single
task whose worker ended three times is given up; the last time no other chunk is in flight, so that it has all the
memory there is.

[Note: memory]
Tasks are taken from an iterator when there is room for them, so the driver holds those in flight and no others.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from simcore.executors.executor import Done, Executor, Open, Unsent
from simcore.executors.interrupts import Interrupts

__all__ = ["Died", "Unanswered", "answers", "opened"]

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_SECONDS: Final = 1.0
_MOST: Final = 4096
"""Tasks of a chunk at most, however short they are."""
_WEIGHT: Final = 0.3
"""Weight of the last chunk in the mean time of a task."""
_TRIES: Final = 3
"""Ends of workers at one task before it is given up."""
_PARTS: Final = 8
"""Parts of a lost chunk: of 512 tasks one that ends its worker costs three workers until it is alone."""


@dataclass(frozen=True, slots=True)
class Died:
    """Answer to one task at which three workers ended, one after the other."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Answer to one task that could not be sent, or whose own answer could not. `why`: text of the error."""

    why: str


class _Size:
    """Size of the next chunk, by the time of those before."""

    def __init__(self, left: int) -> None:
        self.left, self._size, self._mean = left, 1, 0.0

    def next(self, capacity: int) -> int:
        """Number of tasks for about a second; fewer where that would leave other workers without any."""
        return max(1, min(self._size, self.left // (2 * capacity)))

    def learn(self, num_tasks: int, seconds: float) -> None:
        each = seconds / num_tasks
        self._mean = each if not self._mean else (1 - _WEIGHT) * self._mean + _WEIGHT * each
        wanted = int(_SECONDS / max(self._mean, _SECONDS / _MOST))
        # A chunk from before the last growth says nothing about the present size.
        self._size = max(1, min(wanted, 2 * num_tasks if num_tasks >= self._size else self._size))


class _Driver(Generic[Task, Answer]):
    """State of one run over an executor."""

    def __init__(self, tasks: Iterable[tuple[int, Task]], count: int, executor: Executor[Task, Answer]) -> None:
        self._tasks, self._executor, self._size = iter(tasks), executor, _Size(count)
        self._again: deque[Sequence[tuple[int, Task]]] = deque()
        self._alone: deque[tuple[int, Task]] = deque()
        self._deaths: Counter[int] = Counter()
        self._in_flight: dict[int, Sequence[tuple[int, Task]]] = {}
        self._numbers = itertools.count()

    def hand_out(self) -> None:
        while len(self._in_flight) < self._executor.capacity and (chunk := self._next()):
            number = next(self._numbers)
            self._in_flight[number] = chunk
            self._executor.submit(number, [task for _, task in chunk])

    def _next(self) -> Sequence[tuple[int, Task]]:
        if any(self._deaths[index] == _TRIES - 1 for chunk in self._in_flight.values() for index, _ in chunk):
            return ()  # it is alone
        if self._again:
            return self._again.popleft()
        if chunk := [*itertools.islice(self._tasks, self._size.next(max(1, self._executor.capacity)))]:
            self._size.left -= len(chunk)
            return chunk
        return [self._alone.popleft()] if self._alone and not self._in_flight else ()

    @property
    def is_busy(self) -> bool:
        return bool(self._in_flight)

    def taken(self) -> Iterator[tuple[int, Answer | Died | Unanswered]]:
        for result in self._executor.results():
            chunk = self._in_flight.pop(result.chunk)
            if isinstance(result, Done):
                self._size.learn(len(chunk), result.seconds)
                yield from ((index, answer) for (index, _), answer in zip(chunk, result.answers, strict=True))
            elif len(chunk) > 1:
                size = -(-len(chunk) // _PARTS)
                self._again.extend(chunk[start:start + size] for start in range(0, len(chunk), size))
            elif isinstance(result, Unsent):
                yield chunk[0][0], Unanswered(result.why)
            else:
                yield from self._lost(chunk[0])

    def _lost(self, task: tuple[int, Task]) -> Iterator[tuple[int, Died]]:
        index = task[0]
        self._deaths[index] += 1
        if self._deaths[index] == _TRIES:
            yield index, Died()
        elif self._deaths[index] == _TRIES - 1:
            self._alone.append(task)
        else:
            self._again.append([task])

    def left(self) -> Iterator[tuple[int, Task]]:
        """Tasks that were never in flight, or are to be tried again."""
        yield from itertools.chain.from_iterable(self._again)
        yield from self._alone
        yield from self._tasks


@contextmanager
def opened(place: Open[Task] | None, work: Callable[[Task], Answer], asked: Interrupts,
           ) -> Iterator[Executor[Task, Answer] | None]:
    """Context with the executor of a place, whose work ends with it; None for this process."""
    if place is None:
        yield None
        return
    with place(work, asked) as executor:
        yield executor


def answers(tasks: Iterable[tuple[int, Task]], count: int, work: Callable[[Task], Answer],
            executor: Executor[Task, Answer] | None, asked: Interrupts,
            ) -> Iterator[tuple[int, Answer | Died | Unanswered]]:
    """Pairs (index of a task, its answer) in the order in which they come; one for each of the `count` tasks.

    `tasks`: (index, task), taken when there is room. `executor`: one that does `work` (`opened`); None: this process,
    in order. Ends early after a signal in `asked`, with the answers that have come by then. Where the executor has no
    worker and can start none, this process goes on, and says so.
    """
    left = tasks
    if executor is not None:
        driver = _Driver(tasks, count, executor)
        driver.hand_out()
        while driver.is_busy:
            yield from driver.taken()
            if asked.number:
                executor.cancel()
                return
            driver.hand_out()
        left = driver.left()
    for at, (index, task) in enumerate(left):
        if asked.number:
            return
        if executor is not None and not at:
            sys.stderr.write("rankscope: no worker process can be started here: going on without\n")
        yield index, work(task)
