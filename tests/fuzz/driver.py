"""Workers that judge cases, the summary, and faults that are kept."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

from fuzz.bounds import SECONDS, TooLong, bounded
from fuzz.case import Case, Fault, Input, Kind
from fuzz.kinds import case_of
from fuzz.running import judged
from fuzz.shrinking import shrunk

__all__ = ["Job", "Summary", "judge_case", "run"]

_LOST: Final = 20 * SECONDS
"""Of the clock: a worker that says nothing for so long hangs where no signal reaches it."""


@dataclass(frozen=True)
class Job:
    """What is asked of a run: until `seconds` have passed or `cases` were judged."""

    seed: int
    seconds: float = float("inf")
    cases: int | None = None
    workers: int = 2
    keep: Path | None = None
    first: int = 0


class Found(NamedTuple):
    """A fault, where it was found, and the smallest input that has it."""

    case: str
    fault: Fault
    smallest: Input


@dataclass
class Summary:
    """What a run came to. `faults`: the first of each signature; `times`: how often each came."""

    inputs: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Found] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, kind: str, checks: int, counts: dict[str, int], faults: list[Found]) -> None:
        """One case more."""
        self.inputs[kind] += 1
        self.checks += checks
        self.counts.update(counts)
        for found in faults:
            self.times[found.fault.signature] += 1
            self.faults.setdefault(found.fault.signature, found)

    def told(self) -> str:
        """For a terminal."""
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(self.inputs.items()))
        rate = self.inputs.total() / max(self.seconds, 1e-9)
        lines = [f"{self.inputs.total():,} inputs in {self.seconds:,.0f} s ({rate:.1f} a second): {kinds}",
                 f"{self.checks:,} checks; " + ", ".join(f"{n} {c:,}" for n, c in sorted(self.counts.items())),
                 f"{len(self.faults)} faults" + (f", {self.times.total()} times" if self.faults else "")]
        for signature, found in self.faults.items():
            lines += ["", f"{found.case}, {self.times[signature]} times: {found.fault.check}", f"  {found.fault.told}",
                      *(f"  {line}" for line in shown(found.smallest))]
        return "\n".join(lines) + "\n"


def shown(given: Input, most: int = 2000) -> list[str]:
    """An input for a terminal; bytes that are no text are escaped."""
    lines = [f"rankscope {' '.join(given.arguments)}"] if given.arguments else []
    lines += [f"checks: {', '.join(given.checks)}"] if given.checks else []
    for name, held in given.files.items():
        text = held.decode(errors="backslashreplace") if isinstance(held, bytes) else str(held)
        lines += [f"{name}:", *(f"  {line}" for line in text[:most].splitlines())]
    return lines


def judge_case(case: Case, known: set[str]) -> tuple[int, dict[str, int], list[Found]]:
    """Checks, counts and faults of a case; a fault that is not among the `known` signatures is shrunk."""
    try:
        with bounded():
            given = case.draw()
    except (Exception, TooLong) as error:  # noqa: BLE001 - drawing asks `check`, so it may be ours or the fuzzer's
        return 0, {}, [Found(case.name, Fault("a case can be drawn", f"{type(error).__name__}: {error}"), Input({}))]
    found = judged(case.kind, given)
    made = []
    for signature, fault in {fault.signature: fault for fault in found.faults}.items():
        small = given
        if signature not in known:
            known.add(signature)
            small = shrunk(given, partial(_has, case.kind, signature))
        made.append(Found(case.name, fault, small))
    return found.checks, found.counts, made


def _has(kind: Kind, signature: str, given: Input) -> bool:
    return any(fault.signature == signature for fault in judged(kind, given).faults)


# ---- workers --------------------------------------------------------------------------------------------------------
def _work(seed: int, pipe: Connection) -> None:
    """Judges cases whose numbers come, until none does."""
    known: set[str] = set()
    while (number := pipe.recv()) is not None:
        pipe.send((number, *judge_case(case_of(seed, number), known)))


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    number: int
    since: float


def run(job: Job) -> Summary:
    """All cases of a job, on several processes; one that dies or hangs is a fault of the case it had."""
    summary, start = Summary(), time.monotonic()
    numbers = iter(range(job.first, sys.maxsize if job.cases is None else job.first + job.cases))
    workers: list[_Worker] = []
    try:
        workers = [w for _ in range(job.workers) if (w := _started(job.seed, next(numbers, None)))]
        while workers:
            ready = wait([worker.pipe for worker in workers], timeout=5)
            over = time.monotonic() - start > job.seconds
            for worker in list(workers):
                if worker.pipe in ready or time.monotonic() - worker.since > _LOST:
                    _collect(worker, summary, job.seed)
                    workers.remove(worker)
                    workers += _next(worker, job.seed, None if over else next(numbers, None))
    finally:
        for worker in workers:
            worker.process.kill()
    summary.seconds = time.monotonic() - start
    _keep(job, summary)
    return summary


def _started(seed: int, number: int | None) -> _Worker | None:
    if number is None:
        return None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(seed, theirs))
    process.start()
    theirs.close()
    ours.send(number)
    return _Worker(process, ours, number, time.monotonic())


def _collect(worker: _Worker, summary: Summary, seed: int) -> None:
    """What a worker has to say of its case, or that it says nothing any more."""
    case = case_of(seed, worker.number)
    try:
        if not worker.pipe.poll():
            raise EOFError
        _, checks, counts, faults = worker.pipe.recv()
        summary.add(case.kind.name, checks, counts, faults)
    except (EOFError, OSError):
        worker.process.kill()
        worker.process.join()
        told = f"the process ended with {worker.process.exitcode}, or said nothing for {_LOST:g} s"
        summary.add(case.kind.name, 0, {}, [Found(case.name, Fault("a process survives", told), Input({}))])


def _next(worker: _Worker, seed: int, number: int | None) -> list[_Worker]:
    """The worker with its next case, or another in its place."""
    if number is None:
        if worker.process.is_alive():
            worker.pipe.send(None)
        worker.process.join()
        return []
    if not worker.process.is_alive():
        made = _started(seed, number)
        return [made] if made else []
    worker.pipe.send(number)
    worker.number, worker.since = number, time.monotonic()
    return [worker]


def _keep(job: Job, summary: Summary) -> None:
    """Each fault in a folder of its own: its smallest input and what was told."""
    if job.keep is None:
        return
    for found in summary.faults.values():
        folder = job.keep / found.case
        folder.mkdir(parents=True, exist_ok=True)
        told = [f"seed {job.seed}, {found.case}", found.fault.check, found.fault.told,
                *shown(found.smallest, sys.maxsize)]
        with (folder / "fault.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(told) + "\n\n")
        for name in found.smallest.files:
            (folder / Path(name).name).write_bytes(found.smallest.content(name))
