"""Executor: a place that computes chunks of tasks, and the results that a chunk can have.

[Note: chunks]
A chunk is a sequence of tasks that one worker computes one after the other; its answers come back together. An executor
keeps no order, tries nothing twice and cuts nothing: that is the work of `driver`, the same for every executor.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from simcore.executors.interrupts import Interrupts

__all__ = ["Done", "Executor", "Lost", "Open", "Result", "Unsent", "computed"]

Task = TypeVar("Task")
Given_contra = TypeVar("Given_contra", contravariant=True)
Got_co = TypeVar("Got_co", covariant=True)

_THRESHOLDS: Final = (100_000, 20, 50)
"""Thresholds of Python's garbage collector while a chunk is computed: recordings end by reference counts."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Got_co]):
    """Answers to all tasks of one chunk, in their order. `seconds`: time that the worker needed for them."""

    chunk: int
    answers: Sequence[Got_co]
    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A chunk whose worker ended before it had answered."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """A chunk that could not be sent to a worker, or whose answers could not be sent back. `why`: text of the error."""

    chunk: int
    why: str


Result = Done[Got_co] | Lost | Unsent


class Executor(Protocol[Given_contra, Got_co]):
    """Place that computes chunks, each named by a number that its caller chooses."""

    @property
    def capacity(self) -> int:
        """Chunks that it takes at a time, so that no worker is idle; 0 if it has no worker and can start none."""

    def submit(self, chunk: int, tasks: Sequence[Given_contra]) -> None:
        """Takes a chunk; it has exactly one result later, unless the executor is cancelled."""

    def results(self) -> Sequence[Result[Got_co]]:
        """Results that have come; waits for the first one, or for a signal, after which there may be none.

        InputError if there is no hope for more, because a cluster has gone.
        """

    def cancel(self) -> None:
        """Ends all work at once; chunks without a result have none."""


Open = Callable[[Callable[[Task], Any], "Interrupts"], AbstractContextManager[Executor[Task, Any]]]
"""Function of (function that answers one task, recorder of signals) that opens an executor, as a context."""


def computed(work: Callable[[Task], Any], tasks: Sequence[Task]) -> tuple[list[Any], float]:
    """(answers to the tasks of a chunk, seconds); what a worker runs."""
    start = time.perf_counter()
    with _collecting_seldom():
        answers = [work(task) for task in tasks]
    return answers, time.perf_counter() - start


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
