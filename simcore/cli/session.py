"""One command's batch: simulated, written down as results come if there is a folder for them, and what ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.batch.folder import Existing, Folder, opened
from simcore.batch.interrupts import interrupts
from simcore.batch.run import Arrived, Outcome, Work, num_workers, run_batch
from simcore.cli.output import complain, progress
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry

__all__ = ["Ran", "run_entries"]


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcomes in order of the entries. Of a batch that ended early: the exit code, and problems if these ended it.

    `where` is the file that has the results, if there is one.
    """

    outcomes: Sequence[Outcome]
    ended: int = 0
    problems: Sequence[Problem] = ()
    where: str = ""


def run_entries(entries: Sequence[Entry], work: Work, jobs: int | None = None, folder: Path | None = None,
                existing: Existing = Existing.REFUSE) -> Ran:
    """Does `work` to all entries, and to those alone that a folder has no results of.

    InputError where the folder cannot be used; it is not even opened where nothing can be read of what is asked.
    """
    if folder is None or not any(entry.scenario for entry in entries):
        return _run(entries, work, jobs)
    try:
        with opened(folder, entries, work, existing) as kept:
            return _into(kept, entries, work, jobs)
    except InputError as error:
        raise InputError((*error.problems, *(p for entry in entries for p in entry.problems))) from None


def _into(kept: Folder, entries: Sequence[Entry], work: Work, jobs: int | None) -> Ran:
    """What is known already is not simulated again."""
    if kept.told:
        complain([Problem(str(kept.folder), kept.told)])
    known, problems = dict(kept.known), list[Problem]()
    left = [index for index in range(len(entries)) if index not in known]
    made: dict[int, Outcome] = {}

    def arrived(at: int, outcome: Outcome) -> None:
        made[at] = outcome
        kept.add(left[at], outcome)

    ran = Ran(())
    try:
        ran = _run([entries[index] for index in left], work, jobs, arrived, num_known=len(known))
    except InputError as error:  # the disk is full
        problems += error.problems
    try:
        where = kept.end()
    except InputError as error:
        problems += error.problems
        where = ""
    outcomes = known | {left[at]: outcome for at, outcome in made.items()}
    return Ran([outcomes[index] for index in sorted(outcomes)], 2 if problems else ran.ended, problems, where)


def _run(entries: Sequence[Entry], work: Work, jobs: int | None, arrived: Arrived | None = None,
         num_known: int = 0) -> Ran:
    outcomes: list[Outcome] = []
    with interrupts() as asked, progress(num_known + len(entries), num_known) as advance:

        def told(index: int, outcome: Outcome) -> None:
            advance()
            if arrived is not None:
                arrived(index, outcome)

        finished = run_batch(entries, work, outcomes.append, workers=jobs or num_workers(len(entries)), arrived=told,
                             asked=asked)
    return Ran(outcomes, 0 if finished else asked.code)
