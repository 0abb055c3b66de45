"""Workers that judge cases, the summary, and faults that are kept."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

from fuzz.bounds import WALL, TooLong, bounded
from fuzz.case import Case, Fault, Input, Kind
from fuzz.kinds import case_of
from fuzz.running import judged, write
from fuzz.shrinking import shrunk
from simcore.inputs.paths import escaped

__all__ = ["Job", "Summary", "judge_case", "run"]

_LOST: Final = WALL + 30
"""Seconds of the clock: a worker that begins nothing new for so long hangs where no signal reaches it."""
_ALONE: Final = 20.0
"""Seconds in which processes that a case started must end after it."""


@dataclass(frozen=True)
class Job:
    """Limits of a run: it ends after `seconds`, or when `cases` were judged."""

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
    """Result of a run. `faults`: the first of each signature; `times`: the number of times of each."""

    inputs: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Found] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    interrupted: bool = False

    def add(self, kind: str, checks: int, counts: dict[str, int], faults: list[Found]) -> list[Found]:
        """One case more; gives the faults that are new."""
        new = []
        self.inputs[kind] += 1
        self.checks += checks
        self.counts.update(counts)
        for found in faults:
            self.times[found.fault.signature] += 1
            if found.fault.signature not in self.faults:
                self.faults[found.fault.signature] = found
                new.append(found)
        return new

    def told(self) -> str:
        """For a terminal."""
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(self.inputs.items()))
        rate = self.inputs.total() / max(self.seconds, 1e-9)
        lines = [f"{self.inputs.total():,} inputs in {self.seconds:,.0f} s ({rate:.1f} a second): {kinds}",
                 f"{self.checks:,} checks; " + ", ".join(f"{n} {c:,}" for n, c in sorted(self.counts.items())),
                 f"{len(self.faults)} faults" + (f", {self.times.total()} times" if self.faults else "")]
        lines += ["interrupted"] if self.interrupted else []
        for signature, found in self.faults.items():
            lines += ["", f"{found.case}, {self.times[signature]} times: {found.fault.check}", f"  {found.fault.told}",
                      *(f"  {line}" for line in shown(found.smallest))]
        return escaped("\n".join(lines) + "\n")


def shown(given: Input, most: int = 2000) -> list[str]:
    """An input for a terminal; bytes that are no text are escaped."""
    lines = [f"rankscope {' '.join(given.arguments)}"] if given.arguments else []
    lines += [f"checks: {', '.join(given.checks)}"] if given.checks else []
    for name, held in given.files.items():
        text = held.decode(errors="backslashreplace") if isinstance(held, bytes) else str(held)
        lines += [f"{name}:", *(f"  {line}" for line in text[:most].splitlines())]
    return lines


def judge_case(case: Case, known: set[str],
               alive: Callable[[], object] = lambda: None) -> tuple[int, dict[str, int], list[Found]]:
    """Checks, counts and faults of a case; a fault that is not among the `known` signatures is shrunk.

    `alive` is called before each of the judgements that this takes.
    """
    try:
        with bounded():
            given = case.draw()
    except (Exception, TooLong) as error:  # noqa: BLE001 - drawing asks `check`, so it may be ours or the fuzzer's
        return 0, {}, [Found(case.name, Fault("a case can be drawn", f"{type(error).__name__}: {error}"), Input({}))]
    alive()
    found = judged(case.kind, given)
    made = []
    for signature, fault in {fault.signature: fault for fault in found.faults}.items():
        small = given
        if signature not in known:
            known.add(signature)
            small = shrunk(given, partial(_has, case.kind, signature, alive))
        made.append(Found(case.name, fault, small))
    return found.checks, found.counts, made


def _has(kind: Kind, signature: str, alive: Callable[[], object], given: Input) -> bool:
    alive()
    return any(fault.signature == signature for fault in judged(kind, given).faults)


# ---- workers --------------------------------------------------------------------------------------------------------
def _work(seed: int, pipe: Connection) -> None:
    """Judges cases whose numbers come, until none does; None says that it lives.

    In a group of its own, so that whatever a case starts can be ended with it, and Ctrl-C is for the driver alone.
    """
    os.setpgid(0, 0)
    known: set[str] = set()
    while (number := pipe.recv()) is not None:
        case = case_of(seed, number)
        checks, counts, faults = judge_case(case, known, lambda: pipe.send(None))
        if stayed := _ended_others():
            fault = Fault("no process stays", f"of the case there were {stayed} processes after {_ALONE:g} s")
            faults = [*faults, Found(case.name, fault, case.draw())]
        pipe.send((checks, counts, faults))


def _ended_others() -> int:
    """Number of processes of this one's group that had to be ended."""
    deadline = time.monotonic() + _ALONE
    while (others := _others()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(others)


def _others() -> list[int]:
    """Living processes of this one's group, but itself; none where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == os.getpid() != int(folder.name) and state not in "ZX":
                found.append(int(folder.name))
    return found


class _Answer(NamedTuple):
    kind: str
    checks: int
    counts: dict[str, int]
    faults: list[Found]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    number: int
    since: float
    ended: bool = False

    def end(self) -> None:
        """Ends it, with all that it started."""
        self.ended = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # before it has a group
        self.process.join()


def run(job: Job) -> Summary:
    """All cases of a job, on several processes; one that dies or hangs is a fault of the case it had.

    Faults are kept as they come, so whatever ends this loses none; after Ctrl-C the summary is of what came before.
    """
    summary, start = Summary(), time.monotonic()
    numbers = iter(range(job.first, sys.maxsize if job.cases is None else job.first + job.cases))
    workers: list[_Worker] = []
    try:
        workers = [w for _ in range(job.workers) if (w := _started(job.seed, next(numbers, None)))]
        while workers:
            ready = wait([worker.pipe for worker in workers], timeout=5)
            over = time.monotonic() - start > job.seconds
            for worker in list(workers):
                is_lost = time.monotonic() - worker.since > _LOST
                came = _collected(worker, job.seed) if worker.pipe in ready or is_lost else None
                if came is not None:
                    workers.remove(worker)
                    policies, died = _next(worker, job.seed, None if over else next(numbers, None))
                    workers += policies
                    faults = [*came.faults, *died]
                    _keep(job, summary.add(came.kind, came.checks, came.counts, faults))
    except KeyboardInterrupt:
        summary.interrupted = True
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again: this takes no time
        for worker in workers:
            worker.end()
        signal.signal(signal.SIGINT, before)
    summary.seconds = time.monotonic() - start
    return summary


def _started(seed: int, number: int | None) -> _Worker | None:
    if number is None:
        return None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(seed, theirs))
    process.start()
    theirs.close()
    with suppress(OSError):  # it died: whoever waits for its answer hears of that
        ours.send(number)
    return _Worker(process, ours, number, time.monotonic())


def _collected(worker: _Worker, seed: int) -> _Answer | None:
    """Answer of a worker on its case, or its silence if it has died; None while it is at work."""
    case = case_of(seed, worker.number)
    try:
        if not worker.pipe.poll():
            raise EOFError
        came = worker.pipe.recv()
    except (EOFError, OSError):
        worker.end()
        told = f"the process ended with {worker.process.exitcode}, or began nothing new for {_LOST:g} s"
        return _Answer(case.kind.name, 0, {}, [Found(case.name, Fault("a process survives", told), Input({}))])
    if came is None:
        worker.since = time.monotonic()
        return None
    return _Answer(case.kind.name, *came)


def _next(worker: _Worker, seed: int, number: int | None) -> tuple[list[_Worker], list[Found]]:
    """The worker with its next case, or another in its place; a fault where it died after its answer."""
    died: list[Found] = []
    if not worker.ended:
        try:
            worker.pipe.send(number)
        except OSError:
            worker.end()
            told = f"the process ended with {worker.process.exitcode} after its answer"
            died = [Found(case_of(seed, worker.number).name, Fault("a process survives", told), Input({}))]
    if number is None:
        worker.process.join()
        return [], died
    if worker.ended:
        made = _started(seed, number)
        return [made] if made else [], died
    worker.number, worker.since = number, time.monotonic()
    return [worker], died


def _keep(job: Job, new: list[Found]) -> None:
    """Each fault in a folder of its case: what was told, and its smallest input in a numbered folder beside that."""
    for found in new if job.keep is not None else ():
        assert job.keep is not None
        folder = job.keep / found.case
        folder.mkdir(parents=True, exist_ok=True)
        count = sum(1 for path in folder.iterdir() if path.is_dir())
        told = [f"seed {job.seed}, {found.case}", f"input in {count}/", found.fault.check, found.fault.told,
                *shown(found.smallest, sys.maxsize)]
        with (folder / "fault.txt").open("a", encoding="utf-8") as file:
            file.write(escaped("\n".join(told) + "\n\n"))
        (folder / str(count)).mkdir()
        write(found.smallest, folder / str(count))
