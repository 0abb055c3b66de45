"""Order, crashes, dead workers and interrupts of a batch, with an engine of the tests' own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from fakes import FakeEntry, entry, unreadable, work
from simcore.batch import Outcome, Work, num_workers, run_batch
from simcore.loading import Entry


def run(entries: list[FakeEntry], take: Callable[[Outcome], None], workers: int = 1) -> bool:
    """A batch of fakes: they have what a batch asks of entries and of an engine."""
    return run_batch(cast("list[Entry]", entries), cast("Work", work), take, workers=workers)


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


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever started the tests may ignore Ctrl-C (a shell's `&` does), and then nothing here would be interrupted."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_what_is_there() -> None:
    kept: list[Outcome] = []
    assert not run([entry("a"), entry("b", "interrupt"), entry("c")], kept.append)
    assert [o.report.name for o in kept] == ["a"]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_workers_at_once() -> None:
    entries = [entry(f"s{i}", "slow:60" if i == 5 else "fits") for i in range(12)]
    kept: list[Outcome] = []

    def interrupt_when_some_are_done(outcome: Outcome) -> None:
        kept.append(outcome)
        if len(kept) == 3:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

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
