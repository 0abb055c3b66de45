"""Shards: every task in exactly one, equal in size; texts that are none, arrays with gaps."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.executors.shard import Shard, expect_whole, shard_of


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_each_task_is_in_one_shard_and_sizes_differ_by_one_at_most(count: int) -> None:
    tasks = list(range(23))
    parts = [Shard(number, count).part(tasks) for number in range(1, count + 1)]
    assert sorted(task for part in parts for task in part) == tasks
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for number, part in enumerate(parts, start=1):
        assert [task for task in tasks if Shard(number, count).has(task)] == part


def test_a_shard_is_read_and_written_the_same() -> None:
    assert shard_of("2/4", "--shard") == Shard(2, 4)
    assert str(Shard(2, 4)) == "2/4"


@pytest.mark.parametrize(("text", "says"), [
    ("3/2", "expected a shard from 1 to 2, got 3"), ("0/4", "expected a shard from 1 to 4, got 0"),
    ("a/b", "expected a shard such as 2/4"), ("", "expected a shard such as 2/4"), ("1", "such as 2/4"),
    ("1/0", "expected 1 to 100,000 shards"), ("1/999999999", "expected 1 to 100,000 shards"), ("-1/4", "such as 2/4"),
    ("1/2\n", "such as 2/4"), ("\u0661/2", "such as 2/4")])
def test_other_text_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        shard_of(text, "--shard")
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(("shards", "says"), [
    ([(1, 3), (3, 3)], "shard 2/3 is missing"), ([(1, 2), (1, 2), (2, 2)], "p1: is shard 1/2, and so is p0"),
    ([(1, 2), (2, 3)], "p1: is shard 2/3, but p0 is shard 1/2"),
    ([(9, 9)], "shard 1/9, 2/9, 3/9, 4/9, 5/9 and 3 others is missing")])
def test_a_gap_or_a_double_is_refused(shards: list[tuple[int, int]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        expect_whole({f"p{at}": Shard(*one) for at, one in enumerate(shards)})


def test_all_shards_in_any_order_are_whole() -> None:
    expect_whole({f"p{number}": Shard(number, 3) for number in (2, 3, 1)})
