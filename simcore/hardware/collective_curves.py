"""Measured times of collectives, read from `topologies/nccl/*.yaml` or a file of one's own: one file a machine.

[Note: what is measured]
A file holds a table for each collective: microseconds by message (rows) and number of ranks (columns), of NCCL with
nothing else running, on one host, with one GPU a rank. The bytes of a message are those of a report's `payload_bytes`:
the gathered output, the whole input of a reduce-scatter, the buffer of an all-reduce or all-to-all. If NCCL of that
version sums in the switch (NVLS), the table has that in it.

[Note: between the points]
A straight line in logarithms: exact at the points, and where a table falls (NCCL changes its algorithm and protocol
with the size) so does the answer. Beyond the last point the bandwidth stays that of the last, before the first the time
that of the first; neither is a measurement: such calls are marked "model" (`timing.collective.measured_sizes`).
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
"""Nanoseconds, and bytes: the largest accepted values, 36 years and one EiB."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured times of one collective on one number of ranks.

    `sizes`: bytes of the messages, rising; `times`: the time of each in ns.
    """

    sizes: tuple[int, ...]
    times: tuple[int, ...]

    def ns(self, num_bytes: float) -> int:
        """Time in ns of a message of `num_bytes`, interpolated between measured sizes or extrapolated.

        The rule is in [Note: between the points].
        """
        if num_bytes >= self.sizes[-1]:
            return round(self.times[-1] * num_bytes / self.sizes[-1])
        at = bisect_left(self.sizes, num_bytes)
        if at == 0 or self.sizes[at] == num_bytes:
            return self.times[at]
        (low, high), (before, after) = self.sizes[at - 1:at + 1], self.times[at - 1:at + 1]
        share = math.log(num_bytes / low) / math.log(high / low)
        return round(before * math.pow(after / before, share))

    def rising(self) -> Curve:
        """Copy in which each time is the largest of its own and all of smaller messages.

        For models that need more bytes never to take less time.
        """
        return Curve(self.sizes, tuple(accumulate(self.times, max)))

    def left_out(self) -> Iterator[float]:
        """Yields relative errors of interpolation: interpolated / measured time - 1, by rising size.

        One for each measured size but the first and the last. The interpolation uses the curve without that size, so
        the errors are an upper bound of those of the whole curve.
        """
        for at in range(1, len(self.sizes) - 1):
            rest = Curve(self.sizes[:at] + self.sizes[at + 1:], self.times[:at] + self.times[at + 1:])
            yield rest.ns(self.sizes[at]) / self.times[at] - 1


class Curves(Frozen):
    """One file of measured times of collectives on one machine.

    `machine`: the machine it was measured on; `nccl`: the version of NCCL. `curves`: by collective, the text of a
    table: a line of the word `bytes` and numbers of ranks, then lines of message bytes and microseconds for each number
    of ranks.
    """

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
        """Measured curves; keys are (collective, number of ranks)."""
        return {(name, ranks): curve for name, text in self.curves.items() for ranks, curve in _columns(text).items()}

    def measured(self, collective: str, ranks: int) -> Curve | None:
        """Curve of `collective` on `ranks` ranks; None if it was not measured."""
        return self.by_ranks.get((collective, ranks))

    def most_ranks(self, collective: str) -> int:
        """Largest number of ranks on which `collective` was measured in this file; 0 if it was not measured."""
        return max((ranks for name, ranks in self.by_ranks if name == collective), default=0)


def _ns(microseconds: str) -> int:
    value = float(microseconds) * 1000
    if not abs(value) <= _MOST:  # nor infinite, nor no number
        raise ValueError(f"expected a time in microseconds, got {microseconds[:60]}")
    return round(value)


def _columns(text: str) -> dict[int, Curve]:
    """Curves by number of ranks of a table: a line of `bytes` and ranks, then bytes and microseconds; ValueError."""
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
    """Names of the built-in files of measured collectives (`topologies/nccl/`, without `.yaml`), sorted."""
    return tuple(_built_in())


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in sorted(data_folder("topologies").glob("nccl/*.yaml"))}


def find_curves(ref: str, where: str = "curves", folder: Path = Path()) -> Path:
    """Path of the built-in file of measured collectives named `ref`, or of the file at path `ref`.

    The path is relative to `folder`. InputError, with `where` as its place, if there is neither.
    """
    return find_file("curves", ref, _built_in(), where, folder)


@lru_cache(maxsize=64)
def load_curves(path: str | Path) -> Curves:
    """Reads a file of measured collectives; a path is read again only after a topology file was read.

    InputError with `file:line` of each wrong key, and of `curves` for the first text in it that is not a table.
    """
    return read_values(Curves, read_document(path))
