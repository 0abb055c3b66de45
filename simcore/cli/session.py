"""One command's batch: simulated, written to a folder as results come if there is one, and the reason of its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.batch.folder import Existing, Folder, opened
from simcore.batch.run import Arrived, Outcome, Work, num_workers, run_batch
from simcore.cli.output import complain, progress
from simcore.errors import InputError, Problem
from simcore.executors.interrupts import interrupts
from simcore.executors.processes import processes

if TYPE_CHECKING:
    from simcore.executors.executor import Open
    from simcore.executors.shard import Shard
    from simcore.inputs.loading import Entry

__all__ = ["Ran", "run_entries"]


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of one command's batch: outcomes in the order of the entries; fewer if it ended early.

    `ended`: exit code of a batch that ended early, else 0; `problems`: why it did; `where`: path of the file with the
    results, "" without one; `in_folder`: outcomes are on the disk, and read when they are asked for.
    """

    outcomes: Sequence[Outcome]
    ended: int = 0
    problems: Sequence[Problem] = ()
    where: str = ""
    in_folder: bool = False


def run_entries(entries: Sequence[Entry], work: Work, jobs: int | None = None, folder: Path | None = None,
                existing: Existing = Existing.REFUSE, *, place: Open[Entry] | None = None, shard: Shard | None = None,
                taken: Sequence[Outcome] | None = None) -> Ran:
    """Simulates all entries by `work`; with a folder only those without a result there, and adds these.

    `jobs`: worker processes, None: as many as save time; `existing`: what to do with results of another batch; `place`:
    opens another executor than processes; `shard`: only that part of the entries; `taken`: outcomes of all entries,
    which are not simulated again. InputError if the folder cannot be used; it is not opened if no entry has a scenario.
    """
    if folder is None or not (shard or any(entry.scenario for entry in entries)):
        return Ran(taken) if taken is not None else _run(entries, work, jobs, place)
    try:
        with opened(folder, entries, work, existing, shard) as kept:
            return _into(kept, shard.part(entries) if shard else entries, work, jobs, place, taken or ())
    except InputError as error:
        raise InputError((*error.problems, *(p for entry in entries for p in entry.problems))) from None


def _into(kept: Folder, entries: Sequence[Entry], work: Work, jobs: int | None, place: Open[Entry] | None,
          taken: Sequence[Outcome]) -> Ran:
    """Runs the batch into a folder; entries with known results are not simulated again."""
    if kept.told:
        complain([Problem(str(kept.folder), kept.told)])
    for index, outcome in enumerate(taken):
        if index not in kept.known:
            kept.add(index, outcome)
    num_known, problems = len(kept.known), list[Problem]()
    remaining = [index for index in range(len(entries)) if index not in kept.known]

    def arrived(at: int, outcome: Outcome) -> None:
        kept.add(remaining[at], outcome)

    ran = Ran(())
    try:
        ran = _run([entries[index] for index in remaining], work, jobs, place, arrived, num_known, kept.num_fits)
    except InputError as error:  # the disk is full
        problems += error.problems
    try:
        where = kept.end()
    except InputError as error:
        problems += error.problems
        where = ""
    if kept.rows is not None:
        problems += kept.rows.problems
        complain([kept.rows.note] if kept.rows.note else [])
    return Ran(kept.outcomes(), 2 if problems else ran.ended, problems, where, in_folder=True)


def _run(entries: Sequence[Entry], work: Work, jobs: int | None, place: Open[Entry] | None = None,
         arrived: Arrived | None = None, num_known: int = 0, num_fits: int = 0) -> Ran:
    """Simulates entries; their outcomes are in the result unless `arrived` takes them."""
    outcomes: list[Outcome] = []
    with interrupts() as asked, progress(num_known + len(entries), num_known, num_fits) as advance:

        def on_arrival(index: int, outcome: Outcome) -> None:
            advance(outcome.report)
            if arrived is not None:
                arrived(index, outcome)

        workers = min(len(entries), jobs or num_workers(len(entries)))
        place = place or (processes(workers) if workers > 1 else None)
        keep = None if arrived else outcomes.append
        finished = run_batch(entries, work, keep, place=place, arrived=on_arrival, asked=asked)
    return Ran(outcomes, 0 if finished else asked.code)
