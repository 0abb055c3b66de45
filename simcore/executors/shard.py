"""Shard of a job array: every n-th task, so that shards take equally long where neighbouring tasks are alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from simcore.errors import InputError, Problem

__all__ = ["Shard", "expect_whole", "shard_of"]

Task = TypeVar("Task")

_MOST: Final = 100_000
"""Shards at most; Slurm's own limit of an array (MaxArraySize) is lower in most places."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `number` of `count`, both counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, index: int) -> bool:
        """True for the tasks of this shard; indices count from 0."""
        return index % self.count == self.number - 1

    def part(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Tasks of this shard, in order."""
        return tasks[self.number - 1::self.count]


def shard_of(text: str, place: str) -> Shard:
    """Shard from text such as `2/4`; InputError, at `place`, for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise InputError(Problem(place, f"expected a shard such as 2/4, the second of four, got {text[:40]!r}"))
    number, count = int(found[1]), int(found[2])
    if not 1 <= count <= _MOST:
        raise InputError(Problem(place, f"expected 1 to {_MOST:,} shards, got {count:,}"))
    if not 1 <= number <= count:
        raise InputError(Problem(place, f"expected a shard from 1 to {count:,}, got {number:,}"))
    return Shard(number, count)


def expect_whole(found: Mapping[str, Shard]) -> None:
    """Raises InputError unless shards, by the folder that has them, are all shards of one job array, each once."""
    (first_place, first), *others = found.items()
    by_number = {first.number: first_place}
    for place, shard in others:
        if shard.count != first.count:
            raise InputError(Problem(place, f"is shard {shard}, but {first_place} is shard {first}"))
        if shard.number in by_number:
            raise InputError(Problem(place, f"is shard {shard}, and so is {by_number[shard.number]}"))
        by_number[shard.number] = place
    missing = [str(Shard(number, first.count)) for number in range(1, first.count + 1) if number not in by_number]
    if missing:
        more = f" and {len(missing) - 5:,} others" if len(missing) > 5 else ""
        raise InputError(Problem("--from", f"shard {', '.join(missing[:5])}{more} is missing"))
