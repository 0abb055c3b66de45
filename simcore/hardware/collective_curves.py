"""Measured times of collectives, read from `topologies/nccl/*.yaml` or a file of one's own: one file a machine.

[Note: what is measured]
A file holds a table for each collective: microseconds by message (rows) and by ranks (columns), of NCCL alone on one
host, every rank on a GPU of its own. The bytes of a message are those of a report's `payload_bytes`: the gathered
output, the whole input of a reduce-scatter, the buffer of an all-reduce or all-to-all. Where NCCL of that version sums
in the switch (NVLS), the table has that in it.

[Note: between the points]
A straight line in logarithms: exact at the points, and where a table falls (NCCL changes its algorithm and protocol
with the size) so does the answer. Beyond the last point the bandwidth stays that of the last, before the first the time
that of the first; neither is a measurement, and `Curve.covers` says so.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Literal

from pydantic import field_validator

from simcore.inputs.document import read_document
from simcore.inputs.quantity import Frozen, read_values
from simcore.inputs.shipped import data_folder, find_file

__all__ = ["Curve", "Curves", "curve_names", "find_curves", "load_curves"]

_MOST: Final = 2**60
"""Nanoseconds, and bytes: 36 years, and an EiB."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Nanoseconds of one collective on one number of ranks, by bytes; sizes rise."""

    sizes: tuple[int, ...]
    times: tuple[int, ...]

    def covers(self, num_bytes: int) -> bool:
        """Whether it was measured up to there and from there."""
        return self.sizes[0] <= num_bytes <= self.sizes[-1]

    def ns(self, num_bytes: float) -> int:
        """Nanoseconds of a message, see [Note: between the points]."""
        if num_bytes >= self.sizes[-1]:
            return round(self.times[-1] * num_bytes / self.sizes[-1])
        at = bisect_left(self.sizes, num_bytes)
        if at == 0 or self.sizes[at] == num_bytes:
            return self.times[at]
        (low, high), (before, after) = self.sizes[at - 1:at + 1], self.times[at - 1:at + 1]
        share = math.log(num_bytes / low) / math.log(high / low)
        return round(before * math.pow(after / before, share))

    def rising(self) -> Curve:
        """Its running maximum, for models: more bytes never take less time."""
        return Curve(self.sizes, tuple(accumulate(self.times, max)))

    def left_out(self) -> Iterator[float]:
        """For each inner point, how far (relative) the line between its neighbours is from it: an upper bound."""
        for at in range(1, len(self.sizes) - 1):
            rest = Curve(self.sizes[:at] + self.sizes[at + 1:], self.times[:at] + self.times[at + 1:])
            yield rest.ns(self.sizes[at]) / self.times[at] - 1


class Curves(Frozen):
    """One file. `machine`: what it was measured on; `nccl`: the version."""

    machine: str
    nccl: str
    source: str
    curves: dict[Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"], str]

    @field_validator("curves")
    @classmethod
    def _are_tables(cls, curves: dict[str, str]) -> dict[str, str]:
        for text in curves.values():
            _columns(text)
        return curves

    @cached_property
    def by_ranks(self) -> dict[tuple[str, int], Curve]:
        """Curves by (collective, ranks)."""
        return {(name, ranks): curve for name, text in self.curves.items() for ranks, curve in _columns(text).items()}

    def measured(self, collective: str, ranks: int) -> Curve | None:
        """The curve of a collective on so many ranks, where there is one."""
        return self.by_ranks.get((collective, ranks))

    def most_ranks(self, collective: str) -> int:
        """The largest number of ranks on which a collective was measured; 0 where it was not."""
        return max((ranks for name, ranks in self.by_ranks if name == collective), default=0)


def _ns(microseconds: str) -> int:
    value = float(microseconds) * 1000
    if not abs(value) <= _MOST:  # nor infinite, nor no number
        raise ValueError(f"expected a time in microseconds, got {microseconds[:60]}")
    return round(value)


def _columns(text: str) -> dict[int, Curve]:
    """A table: a line of `bytes` and numbers of ranks, then lines of bytes and microseconds; ValueError."""
    head, *rows = [line.split() for line in text.splitlines() if line.strip()] or [[]]
    if head[:1] != ["bytes"] or len(head) < 2 or len(rows) < 2:
        raise ValueError("expected a line of `bytes` and numbers of ranks, and two or more lines of bytes and times")
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"expected {len(head)} numbers in every line")
    sizes = tuple(int(row[0]) for row in rows)
    columns = {int(ranks): tuple(_ns(row[at]) for row in rows) for at, ranks in enumerate(head) if at}
    if sizes[0] < 1 or sizes[-1] > _MOST or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError("expected bytes that rise from line to line")
    if min(min(times) for times in columns.values()) < 1:
        raise ValueError("expected times above zero")
    return {ranks: Curve(sizes, times) for ranks, times in columns.items()}


def curve_names() -> tuple[str, ...]:
    """Names of the built-in files, sorted."""
    return tuple(_built_in())


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in sorted(data_folder("topologies").glob("nccl/*.yaml"))}


def find_curves(ref: str, where: str = "curves", folder: Path = Path()) -> Path:
    """The built-in file of that name, or the file at that path, which starts from `folder`; InputError at `where`."""
    return find_file("curves", ref, _built_in(), where, folder)


@lru_cache(maxsize=64)
def load_curves(path: str | Path) -> Curves:
    """Read a file, once. InputError with `file:line` of every key that is wrong, and of tables that are none."""
    return read_values(Curves, read_document(path))
