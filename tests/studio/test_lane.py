"""Worker processes: the newest question of a tab replaces its older ones, and a lost worker is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from simcore.studio.lane import Lane, Lost, Refused, Superseded
from studio_jobs import JOB

pytestmark = pytest.mark.slow

QUESTION = {"values": JOB}


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    made = Lane(("scenario", "legal", "catalogue"), limit_s=60, warm=False)
    yield made
    made.close()


def worker_of(lane: Lane) -> int:
    """Number of the worker process."""
    assert lane._process is not None
    assert lane._process.pid is not None
    return lane._process.pid


def stopped(lane: Lane) -> int:
    """The worker, ready and then stopped, so that questions wait."""
    lane.ask("", "scenario", QUESTION).result(60)
    os.kill(worker_of(lane), signal.SIGSTOP)
    return worker_of(lane)


def test_of_a_tab_only_the_newest_question_is_answered(lane: Lane) -> None:
    pid = stopped(lane)
    first = lane.ask("a", "scenario", QUESTION)
    second, other = lane.ask("a", "scenario", QUESTION), lane.ask("b", "scenario", QUESTION)
    third = lane.ask("a", "scenario", QUESTION)
    os.kill(pid, signal.SIGCONT)
    assert third.result(30) == other.result(30)
    for older in (first, second):
        with pytest.raises(Superseded):
            older.result(0)


def test_the_urgent_kind_is_answered_first(lane: Lane) -> None:
    pid = stopped(lane)
    running = lane.ask("x", "scenario", QUESTION)
    slow, quick = lane.ask("a", "legal", QUESTION), lane.ask("a", "scenario", QUESTION)
    os.kill(pid, signal.SIGCONT)
    running.result(30)
    quick.result(30)
    assert not slow.done()
    slow.result(30)


def test_a_killed_worker_is_replaced_and_nothing_is_lost(lane: Lane) -> None:
    pid = stopped(lane)
    asked = lane.ask("a", "scenario", QUESTION)
    os.kill(pid, signal.SIGKILL)
    assert b"mine" in asked.result(60)
    assert worker_of(lane) != pid


def test_a_worker_that_hangs_is_replaced(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = stopped(lane)
    with monkeypatch.context() as patched:
        patched.setattr(lane, "_limit_s", 0.2)
        with pytest.raises(Lost, match="no answer"):
            lane.ask("a", "scenario", QUESTION).result(30)
    assert lane.ask("a", "scenario", QUESTION).result(60)
    assert worker_of(lane) != pid


def test_a_question_that_cannot_be_sent_costs_neither_the_thread_nor_the_next_answer(lane: Lane) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Refused, match="RecursionError"):
        lane.ask("a", "scenario", {"values": {"a": deep}}).result(30)
    assert b"mine" in lane.ask("a", "scenario", QUESTION).result(60)


def test_a_wrong_question_is_refused_with_its_problems(lane: Lane) -> None:
    with pytest.raises(Refused, match="expected a file name"):
        lane.ask("a", "scenario", {"name": "a/b"}).result(60)


def test_the_worker_ends_with_its_lane() -> None:
    lane = Lane(("scenario",), warm=False)
    lane.ask("a", "scenario", QUESTION).result(60)
    pid = worker_of(lane)
    lane.close()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
    pytest.fail("the worker is still there")
