"""The driver of an executor: sizes of chunks, few in flight, and what is lost given out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from simcore.executors.driver import Died, Unanswered, answers
from simcore.executors.executor import Done, Lost, Result, Unsent
from simcore.executors.interrupts import Interrupts, interrupts


class Fake:
    """An executor that answers at once, out of order, by a clock of the tests; `ends`: tasks at which a worker ends."""

    def __init__(self, capacity: int, seconds: Callable[[int], float], ends: Callable[[int], bool] = lambda _: False,
                 ) -> None:
        self.capacity, self._seconds, self._ends = capacity, seconds, ends
        self.chunks: list[Sequence[int]] = []
        self.taken: list[tuple[int, Sequence[int]]] = []
        self.most = 0
        self.alone: list[Sequence[int]] = []
        self.is_cancelled = False

    def submit(self, chunk: int, tasks: Sequence[int]) -> None:
        self.chunks.append(tasks)
        self.taken.append((chunk, tasks))
        self.most = max(self.most, sum(len(one) for _, one in self.taken))

    def results(self) -> Sequence[Result[int]]:
        if len(self.taken) == 1:
            self.alone.append(self.taken[0][1])
        chunk, tasks = self.taken.pop()
        if any(self._ends(task) for task in tasks):
            return [Lost(chunk)]
        if -1 in tasks:
            return [Unsent(chunk, "no pickle")]
        return [Done(chunk, [task * 10 for task in tasks], sum(map(self._seconds, tasks)))]

    def cancel(self) -> None:
        self.is_cancelled = True


def driven(executor: Fake, tasks: Sequence[int], asked: Interrupts | None = None) -> dict[int, object]:
    def here(task: int) -> int:
        return task * 10

    with interrupts() as own:
        found = list(answers(enumerate(tasks), len(tasks), here, executor, asked or own))
    assert len({index for index, _ in found}) == len(found)
    return dict(found)


def test_every_task_is_answered_once() -> None:
    found = driven(Fake(3, lambda _: 0.01), range(1000))
    assert found == {task: task * 10 for task in range(1000)}


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.2, 5.0])
def test_a_chunk_takes_about_a_second(seconds: float) -> None:
    executor = Fake(2, lambda _: seconds)
    driven(executor, range(20_000))
    longest = max(len(chunk) for chunk in executor.chunks) * seconds
    assert longest == pytest.approx(max(1.0, seconds), rel=0.25)


def test_chunks_follow_the_time_of_tasks() -> None:
    """Tasks get 50 times as long: the next chunks get shorter."""
    executor = Fake(1, lambda task: 0.002 if task < 5000 else 0.1)
    driven(executor, range(6000))
    short = max(len(chunk) for chunk in executor.chunks if chunk[-1] < 5000)
    last = [len(chunk) for chunk in executor.chunks if chunk[0] > 5600]
    assert short > 400
    assert max(last) <= 20


def test_chunks_get_smaller_towards_the_end() -> None:
    executor = Fake(4, lambda _: 0.001)
    driven(executor, range(10_000))
    assert len(executor.chunks[-1]) == 1
    assert max(map(len, executor.chunks)) <= 10_000 // 8


def test_only_chunks_in_flight_are_taken_from_the_tasks() -> None:
    executor, most = Fake(4, lambda _: 0.01), 0
    asked = 0

    def tasks() -> Iterator[tuple[int, int]]:
        nonlocal asked
        for task in range(100_000):
            asked += 1
            yield task, task

    with interrupts() as own:
        for done, _ in enumerate(answers(tasks(), 100_000, int, executor, own), start=1):
            most = max(most, asked - done)
    assert most <= (executor.capacity + 1) * 110


def test_a_lost_chunk_is_given_out_again() -> None:
    ended: set[int] = set()

    def once(task: int) -> bool:
        if task in (50, 70) and task not in ended:
            ended.add(task)
            return True
        return False

    assert driven(Fake(2, lambda _: 0.05, once), range(200)) == {task: task * 10 for task in range(200)}


def test_a_task_that_ends_its_workers_is_given_up_alone() -> None:
    executor = Fake(3, lambda _: 0.01, lambda task: task == 700)
    found = driven(executor, range(1000))
    assert found.pop(700) == Died()
    assert found == {task: task * 10 for task in range(1000) if task != 700}
    assert sum(chunk == [700] for chunk in executor.chunks) == 3
    assert executor.alone[-1] == [700]
    assert sum(700 in chunk for chunk in executor.chunks) <= 7


def test_what_cannot_be_sent_costs_only_itself() -> None:
    found = driven(Fake(2, lambda _: 0.01), [*range(90), -1, *range(100, 200)])
    assert found[90] == Unanswered("no pickle")
    assert len(found) == 191
    assert sum(isinstance(answer, Unanswered) for answer in found.values()) == 1


def test_without_workers_this_process_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert driven(Fake(0, lambda _: 1), range(5)) == {task: task * 10 for task in range(5)}
    assert capsys.readouterr().err.count("no worker process can be started here") == 1


def test_a_signal_ends_the_run() -> None:
    with interrupts() as asked:
        executor = Fake(2, lambda _: 1)
        asked.number = 2
        assert len(driven(executor, range(50), asked)) <= 1
        assert executor.is_cancelled
