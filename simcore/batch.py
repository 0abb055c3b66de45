"""Many scenarios, in order, on several cores; nothing that goes wrong with one costs another.

Results come out in the order of the entries whatever the number of workers. A worker that dies (out of memory, a
crash in a library) breaks the pool it is in, so what may have been running is tried once more, each scenario alone.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcore.report import ProblemRow, Report

if TYPE_CHECKING:
    from simcore.loading import Entry
    from simcore.scenario import Scenario

__all__ = ["Keep", "Outcome", "Work", "num_workers", "run_batch"]

_SMALL = 64
"""Scenarios a worker must have to do before it pays for its start."""

_CHUNK = 8
"""Most scenarios in one message to a worker: few enough that an interrupt loses little and none idles long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario's result, where it is written (`file:line`), and its exit code: 0, 1, 2 or 3."""

    report: Report
    where: str
    code: int


Work = Callable[["Scenario"], Report]
Keep = Callable[[Outcome], None]
_Chunk = Sequence["Entry"]


def num_workers(num_entries: int) -> int:
    """How many worker processes pay for themselves on this machine; 1 means none beside this process."""
    return max(1, min(os.cpu_count() or 1, num_entries // _SMALL))


def run_batch(entries: Sequence[Entry], work: Work, keep: Keep, *, workers: int = 1) -> bool:
    """Calls `keep` with each outcome, in the order of `entries`; False when interrupted, with all that was done kept.

    `work` must be picklable for more than one worker. An exception out of it is that scenario's outcome (code 3).
    """
    try:
        if workers == 1:
            return _one_by_one(entries, work, keep)
        _parallel(entries, work, keep, workers)
    except KeyboardInterrupt:
        return False
    return True


def _one_by_one(entries: Sequence[Entry], work: Work, keep: Keep) -> bool:
    with _interrupts() as asked:
        for entry in entries:
            keep(_attempt(entry, work))
            if asked():
                return entry is entries[-1]
    return True


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is looked at between scenarios: Python loses one that comes inside a finalizer. A second one raises."""
    found: list[int] = []

    def note(number: int, frame: object) -> None:
        found.append(number)
        if len(found) > 1:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(found)
    finally:
        signal.signal(signal.SIGINT, before)


def _attempt(entry: Entry, work: Work) -> Outcome:
    if entry.scenario is None:
        rows = tuple(ProblemRow(where=p.where, message=p.message, rule=p.rule) for p in entry.problems)
        return Outcome(_without_result(entry, *rows), entry.where, 2)
    try:
        report = work(entry.scenario)
    except OverflowError:
        row = ProblemRow(where=entry.where, message="the sizes of this model and batch pass what 64 bits can count")
        return Outcome(_without_result(entry, row), entry.where, 2)
    except Exception as error:  # noqa: BLE001 - a bug of ours costs one scenario, not the batch
        if os.environ.get("RANKSCOPE_DEBUG"):
            traceback.print_exc(file=sys.stderr)
        return _crash(entry, f"bug in rankscope: {type(error).__name__}: {error}")
    return Outcome(report, entry.where, _code(report, swept=entry.scenario.swept))


def _code(report: Report, *, swept: bool) -> int:
    """A layout that a sweep made and the framework refuses is an answer; one that a person wrote is a mistake."""
    if report.status == "ok":
        return 1 if report.verdict == "oom" else 0
    return 0 if report.status == "illegal" and swept else 2


def _crash(entry: Entry, message: str) -> Outcome:
    return Outcome(_without_result(entry, ProblemRow(where=entry.where, message=message)), entry.where, 3)


def _without_result(entry: Entry, *problems: ProblemRow) -> Report:
    return Report(name=entry.name, scenario={}, status="error", problems=problems)


def _attempt_all(chunk: _Chunk, work: Work) -> list[Outcome]:
    return [_attempt(entry, work) for entry in chunk]


def _parallel(entries: Sequence[Entry], work: Work, keep: Keep, workers: int) -> None:
    # Several chunks a worker, so that none idles long at the end.
    size = max(1, min(_CHUNK, len(entries) // (4 * workers)))
    waiting: list[_Chunk] = [entries[i : i + size] for i in range(0, len(entries), size)]
    while waiting:
        waiting = _until_break(waiting, work, keep, workers)


def _until_break(chunks: list[_Chunk], work: Work, keep: Keep, workers: int) -> list[_Chunk]:
    """Runs chunks through one pool; after a dead worker, settles what may have been running, and returns the rest."""
    with _pool(workers) as pool:
        futures = _submit(pool, chunks, work)
        num_kept = 0
        try:
            while num_kept < len(futures) and _survived(futures[num_kept]):
                _keep_all(futures[num_kept].result(), keep)
                num_kept += 1
        except KeyboardInterrupt:
            _stop(pool)
            for future in futures[num_kept:]:
                if future.done() and _survived(future):
                    _keep_all(future.result(), keep)
            raise
    if num_kept == len(chunks):
        return []
    return _settle(chunks[num_kept:], futures[num_kept:], work, keep, num_suspects=workers + 1)


def _settle(
    chunks: list[_Chunk], futures: list[Future[list[Outcome]]], work: Work, keep: Keep, num_suspects: int
) -> list[_Chunk]:
    """Work is handed out in order, so only the first unfinished chunks can have been in a worker when one died."""
    for i, chunk in enumerate(chunks):
        if i < len(futures) and _survived(futures[i]):
            _keep_all(futures[i].result(), keep)
        elif num_suspects:
            num_suspects -= 1
            for entry in chunk:
                keep(_alone(entry, work))
        else:
            return chunks[i:]
    return []


def _alone(entry: Entry, work: Work) -> Outcome:
    with _pool(1) as pool:
        try:
            return _submit(pool, [[entry]], work)[0].result()[0]
        except BrokenProcessPool:
            return _crash(entry, "the process that worked on this scenario died, twice (out of memory?)")
        except KeyboardInterrupt:
            _stop(pool)
            raise
        except Exception as error:  # noqa: BLE001 - it could not be sent to a worker, or its result not back
            return _crash(entry, f"bug in rankscope: {type(error).__name__}: {error}")


def _submit(pool: ProcessPoolExecutor, chunks: list[_Chunk], work: Work) -> list[Future[list[Outcome]]]:
    """As many as the pool takes: it takes none once a worker is dead."""
    futures: list[Future[list[Outcome]]] = []
    # Workers start here and inherit this: Ctrl-C is for the parent, which stops them.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for chunk in chunks:
            futures.append(pool.submit(_attempt_all, chunk, work))  # noqa: PERF401 - what was submitted must survive
    except BrokenProcessPool:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
    return futures


def _survived(future: Future[list[Outcome]]) -> bool:
    """Waits; whether there is a result and not a dead worker."""
    try:
        return future.exception() is None
    except CancelledError:
        return False


def _keep_all(outcomes: list[Outcome], keep: Keep) -> None:
    """Empties the list, so that after an interrupt the rest of it, and only that, can still be kept."""
    while outcomes:
        keep(outcomes.pop(0))


def _pool(workers: int) -> ProcessPoolExecutor:
    # `spawn` is the same everywhere, and safe beside the threads of numerical libraries.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=gc.set_threshold,
                               initargs=gc.get_threshold())


def _stop(pool: ProcessPoolExecutor) -> None:
    """Nobody waits for results any more, so the workers need not finish."""
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in multiprocessing.active_children():
        worker.terminate()
