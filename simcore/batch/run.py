"""A batch of scenarios on several cores; a failure in one does not affect the others.

Results are kept in the order of the entries for any number of workers, and `arrived` is called for each as soon as it
exists, in any order. The workers are those of an executor (`simcore.executors`).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from simcore.executors.driver import Died, Unanswered, answers, opened
from simcore.executors.executor import Open
from simcore.executors.interrupts import Interrupts, interrupts
from simcore.results.report import ProblemRow, Report

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry
    from simcore.inputs.scenario import Scenario

__all__ = ["Arrived", "Keep", "Outcome", "Work", "attempt", "num_workers", "outcome_of", "run_batch"]

_SMALL = 64
"""Scenarios per worker from which starting it saves time."""

_BUG: Final = "bug in rankscope: "
_DIED: Final = "the process that worked on this scenario died"
"""First words of the messages of outcomes with code 3."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one scenario; `where`: its place, `file:line`; `code`: the exit code that it asks for.

    0: simulated and fits, or a layout of a sweep that the framework refuses; 1: does not fit on the device; 2: wrong or
    refused input; 3: a bug, or the process died.
    """

    report: Report
    where: str
    code: int


Work = Callable[["Scenario"], Report]
Keep = Callable[[Outcome], None]
Arrived = Callable[[int, Outcome], None]


def num_workers(num_entries: int) -> int:
    """Number of worker processes that save time for `num_entries` scenarios on this machine.

    1 means that this process alone does the work.
    """
    return max(1, min(os.cpu_count() or 1, num_entries // _SMALL))


def run_batch(entries: Sequence[Entry], work: Work, keep: Keep | None, *, place: Open[Entry] | None = None,
              arrived: Arrived | None = None, asked: Interrupts | None = None) -> bool:
    """Simulates all `entries`; calls `keep` with each outcome in their order. True if all have one.

    False if a signal ended the run; finished outcomes are kept then too, in order. `keep`: None where `arrived` keeps
    them, so that none waits here for its turn. `work`: simulates one scenario;
    picklable if there is a `place`; an exception in it becomes that scenario's outcome (`attempt`). `place`: opens the
    executor; None: this process. `arrived`: called with index and outcome as soon as it exists, in any order. `asked`:
    recorder of signals for the caller to read afterwards; None: one of this call.
    """
    if asked is None:
        with interrupts() as own:
            return run_batch(entries, work, keep, place=place, arrived=arrived, asked=own)
    waiting: dict[int, Outcome] = {}
    num_kept = num_arrived = 0
    try:
        with closing(_outcomes(entries, work, place, asked)) as outcomes:  # an error in a callback ends the workers
            for index, outcome in outcomes:
                if arrived is not None:
                    arrived(index, outcome)
                num_arrived += 1
                if keep is None:
                    continue
                waiting[index] = outcome
                while num_kept in waiting:
                    keep(waiting.pop(num_kept))
                    num_kept += 1
    except KeyboardInterrupt:
        asked.number = asked.number or signal.SIGINT
    if keep is not None:
        for index in sorted(waiting):
            keep(waiting[index])
    return num_arrived == len(entries)


def _outcomes(entries: Sequence[Entry], work: Work, place: Open[Entry] | None,
              asked: Interrupts) -> Generator[tuple[int, Outcome], None, None]:
    """Each outcome with the index of its entry; in order where this process computes them."""
    one = partial(attempt, work=work)
    with opened(place, one, asked) as executor:
        for index, answer in answers(enumerate(entries), len(entries), one, executor, asked):
            yield index, answer if isinstance(answer, Outcome) else _unanswered(entries[index], answer)


def _unanswered(entry: Entry, answer: Died | Unanswered) -> Outcome:
    if isinstance(answer, Unanswered):
        return _crash(entry, f"{_BUG}{answer.why}")
    return _crash(entry, f"{_DIED}, three times, at last with no other at work (out of memory?)")


def attempt(entry: Entry, work: Work) -> Outcome:
    """Outcome of `work` on one scenario: its report, or one with the problems of `entry` or the exception.

    Codes: 2 for problems of the entry and sizes beyond 64 bits (OverflowError), 3 for any other exception, else as the
    report says (`Outcome`). Only KeyboardInterrupt leaves this function.
    """
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
        return _crash(entry, f"{_BUG}{type(error).__name__}: {error}")
    return Outcome(report, entry.where, _code(report, swept=entry.scenario.swept))


def outcome_of(entry: Entry, report: Report) -> Outcome:
    """Outcome of `entry` with a `report` that an earlier run wrote; its exit code is that of the earlier run."""
    if entry.scenario is None:
        return Outcome(report, entry.where, 2)
    crashed = report.status == "error" and any(row.message.startswith((_BUG, _DIED)) for row in report.problems)
    return Outcome(report, entry.where, 3 if crashed else _code(report, swept=entry.scenario.swept))


def _code(report: Report, *, swept: bool) -> int:
    """Exit code of a report; a refused layout is an answer in a sweep, and an error in a single scenario."""
    if report.status == "ok":
        return 1 if report.verdict == "oom" else 0
    return 0 if report.status == "illegal" and swept else 2


def _crash(entry: Entry, message: str) -> Outcome:
    return Outcome(_without_result(entry, ProblemRow(where=entry.where, message=message)), entry.where, 3)


def _without_result(entry: Entry, *problems: ProblemRow) -> Report:
    return Report(name=entry.name, scenario={}, status="error", problems=problems)
