"""What torch's allocator reserves for what is allocated.

[Note: reserved]
Derived: segments come in 2 MiB for requests up to 1 MiB, in 20 MiB up to 10 MiB, in multiples of 2 MiB above (torch
`c10/core/AllocatorConfig.h`, `c10/cuda/CUDACachingAllocator.cpp`), and all of them hold at least what is allocated.
That is the low end. How much more is kept depends on the order in which blocks of different sizes come free.
Calibrated: the middle and the high end are shares of what was allocated, over all readings of both on one rank:
simumax-b200 (11 distinct) and mbridge-card (6) of `tests/truth/measured`: median 3.3%, 90% quantile 7.3%. The middle
from one group misses the other by 1.1% and 1.2% (median of errors, at most 6.5%); see `tests/test_reserve.py`.
Assumed: no row says whether segments were expandable. A replay of the allocator (`tests/replay.py`) on the programs of
the simumax-b200 rows that can be simulated keeps 0.2 to 4.2% with ordinary segments, where 2.0 to 7.3% were measured,
and 0.1 to 0.9% with expandable ones. So those rows had ordinary segments; with expandable ones, what the replay keeps
(median 0.3%, at most 0.9%) and what it misses (median 1.5%, at most 6.1%) are added up.
Assumed: all those rows are Megatron's, two of them under its own FSDP, which keeps its buffers. FSDP2 allocates its
buffers on streams of their own, whose blocks no other stream may take, and moments are cut out of what the first step's
activations left. The replay keeps 10% of an 8B model with its activations and 30% of one that recomputes; that is the
high end until rows are there. Torch gives whole free segments back before it fails, so much of this is cache, no need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["EXPANDABLE", "GATHERED", "ORDINARY", "Reserved", "Shares", "reserved"]

_SEGMENT: Final = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Shares:
    """Of what is allocated, kept beyond it: the median and the high end."""

    middle: float
    high: float


ORDINARY: Final = Shares(0.033, 0.073)
EXPANDABLE: Final = Shares(0.018, 0.070)
GATHERED: Final = Shares(0.033, 0.30)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Bytes that the allocator holds at the peak: between `low` and `high`, most likely about `middle`."""

    low: int
    middle: int
    high: int


def reserved(allocated: int, shares: Shares = ORDINARY) -> Reserved:
    """For a peak of `allocated` bytes."""
    low, middle, high = (_segments(allocated * (1 + share)) for share in (0, shares.middle, shares.high))
    return Reserved(low, middle, high)


def _segments(num_bytes: float) -> int:
    return -int(-num_bytes // _SEGMENT) * _SEGMENT
