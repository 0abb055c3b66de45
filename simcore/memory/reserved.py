"""Memory that torch's caching allocator reserves for the allocated bytes.

[Note: reserved]
Derived: segments come in 2 MiB for requests up to 1 MiB, in 20 MiB up to 10 MiB, in multiples of 2 MiB above (torch
`c10/core/AllocatorConfig.h`, `c10/cuda/CUDACachingAllocator.cpp`), and all of them hold at least what is allocated.
That is the low end. How much more is reserved depends on the order in which blocks of different sizes come free.
Calibrated: shares of what was allocated, over all readings of both on one rank, by the allocator's setting.
Ordinary segments: simumax-b200 (11 distinct readings) of `tests/truth/measured`: median 3.8%, 90% quantile 7.3%.
Expandable ones: mbridge-card (6 readings, whose recipes set `PYTORCH_CUDA_ALLOC_CONF`): median 2.7%, five at most 3.4%,
the only one of another model (Gemma 4, fine-tuned) 10.9%: too few for a quantile. The high end is therefore what a
replay of the allocator keeps at most, and its largest error (below).
Of 12 readings of further layouts, which were added later and are not in the constants, the middle misses 1.4% (median),
and 11 lie inside.
Assumed: no row of simumax-b200 says whether segments were expandable. A replay of the allocator (`tests/replay.py`) on
the programs of the simumax-b200 rows that can be simulated keeps 0.2 to 4.2% with ordinary segments, where 2.0 to 7.3%
were measured, and 0.1 to 0.9% with expandable ones. So those rows had ordinary segments; the replay misses 1.5%
(median), at most 6.1%.
Calibrated: where parameters are gathered, on measured against simulated bytes, for torchtitan's own log lines:
torchtitan (2) and torchtitan-log (3), eager ones: median 22.4%, largest 30.91%, rounded up. The middle from one group
misses the other by 5.8% and 6.2% (median of errors, at most 10%). Compiled rows, rows in fp8, with tensor or context
parallelism or with stages were added later and are not in the constants: of these 31 the middle misses 2.5% (median),
and 27 lie inside (which side of a commit the runs of December 2024 are on was dated when their readings had been seen;
two rows are not theirs). FSDP2 allocates its buffers on separate streams, whose blocks other streams cannot reuse, and
moments are allocated in the free blocks of the first step's activations: a replay of that order, which uses no reading,
keeps 14 to 30% on the eager rows. Torch frees unused segments before it fails, so reserved memory beyond `ORDINARY` is
cache and not needed: it never exceeds the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["EXPANDABLE", "GATHERED", "ORDINARY", "Reserved", "ReservedModel", "needed", "reserved"]

_SEGMENT: Final = 2 * 2**20


@dataclass(frozen=True, slots=True)
class ReservedModel:
    """Memory that torch's allocator reserves beyond the allocated bytes, as shares of these.

    `middle`: the median over measured runs; `high`: the upper end.
    """

    middle: float
    high: float


ORDINARY: Final = ReservedModel(0.038, 0.073)
EXPANDABLE: Final = ReservedModel(0.027, 0.070)
GATHERED: Final = ReservedModel(0.224, 0.310)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Bytes that torch's allocator reserves at the peak: from `low` to `high`, most likely `middle`."""

    low: int
    middle: int
    high: int

    @property
    def band(self) -> tuple[int, int]:
        """(low, high)."""
        return self.low, self.high

    def plus(self, num_bytes: int) -> Reserved:
        """All three, with memory outside the allocator added."""
        return Reserved(self.low + num_bytes, self.middle + num_bytes, self.high + num_bytes)


def needed(allocated: int, shares: ReservedModel, usual: ReservedModel = ORDINARY) -> Reserved:
    """Bytes that the allocator must reserve for `allocated` bytes: with fragmentation, without cache.

    Of `shares` (of this layout) and `usual` the smaller count, as what gathering parameters adds beyond `usual` is
    cache that torch can free.
    """
    return reserved(allocated, ReservedModel(min(shares.middle, usual.middle), min(shares.high, usual.high)))


def reserved(allocated: int, shares: ReservedModel = ORDINARY, room: int | None = None) -> Reserved:
    """Bytes that the allocator is observed to reserve at a peak of `allocated` bytes, cache included.

    Its low end has no fragmentation, its other two add `shares.middle` and `shares.high` of `allocated`. `room`: bytes
    of the device for the allocator, which cache never exceeds; None: no limit.
    """
    ends = [_segments(allocated * (1 + share)) for share in (0, shares.middle, shares.high)]
    if room is None:
        return Reserved(*ends)
    least = needed(allocated, shares)
    return Reserved(ends[0], min(ends[1], max(room, least.middle)), min(ends[2], max(room, least.high)))


def _segments(num_bytes: float) -> int:
    return -int(-num_bytes // _SEGMENT) * _SEGMENT
