"""Order, crashes, dead workers and interrupts of a batch, with an engine of the tests' own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from checkout import ROOT
from fakes import FakeEntry, entry, unreadable, work
from simcore.batch.run import Outcome, Work, num_workers, run_batch
from simcore.errors import InputError, Problem
from simcore.executors.executor import Open
from simcore.executors.processes import Processes, processes
from simcore.inputs.loading import Entry


def place(workers: int) -> Open[Any] | None:
    return processes(workers) if workers > 1 else None


def run(entries: list[FakeEntry], take: Callable[[Outcome], None], workers: int = 1) -> bool:
    """A batch of fakes: they have what a batch asks of entries and of an engine."""
    return run_batch(cast("list[Entry]", entries), cast("Work", work), take, place=place(workers))


def outcomes(entries: list[FakeEntry], workers: int = 1) -> list[Outcome]:
    kept: list[Outcome] = []
    assert run(entries, kept.append, workers)
    return kept


def test_the_code_of_a_scenario_says_what_became_of_it() -> None:
    entries = [entry("a"), entry("b", "oom"), entry("c", "illegal"), entry("d", "illegal", swept=True),
               unreadable("e"), entry("f", "crash")]
    kept = outcomes(entries)
    assert [o.code for o in kept] == [0, 1, 2, 0, 2, 3]
    assert [o.report.status for o in kept] == ["ok", "ok", "illegal", "illegal", "error", "error"]
    assert kept[4].report.problems[0].where == "e.yaml:7"
    assert "ZeroDivisionError" in kept[5].report.problems[0].message


def test_results_are_the_same_at_any_number_of_workers() -> None:
    entries = [entry(f"s{i}", ("fits", "oom", "crash", "slow:0.01")[i % 4]) for i in range(23)]
    one = outcomes(entries)
    assert [o.report.name for o in one] == [e.name for e in entries]
    assert outcomes(entries, workers=2) == one
    assert outcomes(entries, workers=3) == one


def test_a_dead_worker_costs_only_its_scenario() -> None:
    entries = [entry(f"s{i}", "die" if i in {3, 17} else "fits") for i in range(40)]
    kept = outcomes(entries, workers=2)
    assert [o.report.name for o in kept] == [e.name for e in entries]
    assert [i for i, o in enumerate(kept) if o.code] == [3, 17]
    assert "died" in kept[3].report.problems[0].message


def test_a_worker_that_died_once_gets_a_second_chance(tmp_path: Path) -> None:
    entries = [entry("a"), entry("b", f"die_once:{tmp_path / 'died'}"), entry("c")]
    assert [o.code for o in outcomes(entries, workers=2)] == [0, 0, 0]


def test_a_dead_worker_costs_one_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another takes its place; what it had not begun goes to whoever is idle."""
    starts: list[Processes[Any, Any]] = []
    real = Processes._start

    def counted(self: Processes[Any, Any]) -> bool:
        starts.append(self)
        return real(self)

    monkeypatch.setattr(Processes, "_start", counted)
    entries = [entry(f"s{i}", f"die_once:{tmp_path / 'died'}" if i == 5 else "fits") for i in range(40)]
    assert [o.code for o in outcomes(entries, workers=2)] == [0] * 40
    assert 3 <= len(starts) <= 4  # where the other had ended already, two go on


def test_outcomes_are_told_as_they_come() -> None:
    entries = [entry(f"s{i}", "slow:1" if i == 0 else "fits") for i in range(16)]
    came: list[int] = []
    kept: list[Outcome] = []
    assert run_batch(cast("list[Entry]", entries), cast("Work", work), kept.append, place=place(2),
                     arrived=lambda index, _: came.append(index))
    assert came != sorted(came)
    assert sorted(came) == list(range(16))
    assert [o.report.name for o in kept] == [e.name for e in entries]


def test_an_error_while_keeping_ends_the_workers() -> None:
    def full(outcome: Outcome) -> None:
        raise InputError(Problem("out", "cannot be written: No space left on device"))

    entries = [entry(f"s{i}", "slow:60" if i == 5 else "fits") for i in range(12)]
    with pytest.raises(InputError, match="No space left"):
        run(entries, full, workers=2)
    assert multiprocessing.active_children() == []


def test_what_cannot_be_sent_costs_only_itself() -> None:
    entries = [entry(f"s{i}") for i in range(12)]
    entries[4] = entry("s4", cast("str", threading.Lock()))
    kept = outcomes(entries, workers=2)
    assert [i for i, o in enumerate(kept) if o.code] == [4]
    assert "cannot pickle" in kept[4].report.problems[0].message


def test_where_no_process_can_be_started_the_batch_runs_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(self: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refused)
    assert [o.code for o in outcomes([entry(f"s{i}") for i in range(12)], workers=2)] == [0] * 12
    assert "no worker process can be started here" in capsys.readouterr().err


def test_where_no_more_files_may_be_open_the_batch_runs_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = multiprocessing.Pipe

    def refused(*, duplex: bool = True) -> object:
        if duplex:
            raise OSError(24, "Too many open files")
        return pipe(duplex=False)

    monkeypatch.setattr("multiprocessing.Pipe", refused)
    assert [o.code for o in outcomes([entry(f"s{i}") for i in range(12)], workers=2)] == [0] * 12
    assert "no worker process can be started here" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("does", ["slow:600", "busy"])
def test_workers_end_with_their_parent(tmp_path: Path, does: str) -> None:
    """Workers that wait, sleep or compute."""
    code = ("import sys; from pathlib import Path; from fakes import entry, work\n"
            "from simcore.batch.run import run_batch\n"
            "from simcore.executors.processes import processes\n"
            "if __name__ == '__main__':\n"
            f"    entries = [entry(f's{{i}}', {does!r} if i == 1 else f'pid:{tmp_path}') for i in range(8)]\n"
            "    run_batch(entries, work, lambda _: None, place=processes(2))\n")
    here = ROOT / "tests"
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{here.parent}:{here}"}
    with subprocess.Popen([sys.executable, script], env=environment) as started:
        deadline = time.monotonic() + 60
        while len(children := _children(started.pid)) < 2 or not _pids(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        started.kill()
    while left := [pid for pid in children if _alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def _children(parent: int) -> list[int]:
    """Its workers and the resource tracker."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(stat.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever started the tests may ignore Ctrl-C (a shell's `&` does), and then nothing here would be interrupted."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_what_is_there() -> None:
    kept: list[Outcome] = []
    assert not run([entry("a"), entry("b", "interrupt"), entry("c")], kept.append)
    assert [o.report.name for o in kept] == ["a"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_workers_at_once(number: signal.Signals) -> None:
    entries = [entry(f"s{i}", "slow:60" if i == 5 else "fits") for i in range(12)]
    kept: list[Outcome] = []

    def interrupt_when_some_are_done(outcome: Outcome) -> None:
        kept.append(outcome)
        if len(kept) == 3:
            threading.Timer(0.5, os.kill, (os.getpid(), number)).start()

    start = time.monotonic()
    assert not run(entries, interrupt_when_some_are_done, workers=2)
    assert time.monotonic() - start < 20
    names = [o.report.name for o in kept]
    assert "s5" not in names
    assert names == sorted(names, key=lambda name: int(name[1:]))
    assert len(names) >= 5


@pytest.mark.parametrize(("num_entries", "most"), [(0, 1), (1, 1), (63, 1), (100_000, os.cpu_count())])
def test_few_scenarios_start_no_workers(num_entries: int, most: int) -> None:
    assert num_workers(num_entries) == most
