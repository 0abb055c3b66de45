"""Sizes that torch's allocator asks the driver for, and how its messages print them.

[Note: rounding of requests]
torch 2.6 to main, `c10/cuda/CUDACachingAllocator.cpp`: a request is rounded up to 512 B (`round_size`); one of up to
1 MiB (kSmallSize) takes a block of 2 MiB (kSmallBuffer), below 10 MiB (kMinLargeAlloc) one of 20 MiB (kLargeBuffer),
any other is rounded up to 2 MiB (kRoundLarge); `get_allocation_size`. The size in the message is that of the block.
`format_size`: two decimals, `bytes` up to 1024, then KiB, MiB and GiB, each up to 1024 of the unit.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SIZE", "block_bytes", "is_printed_as", "parse_size", "resolution"]

_MIB: Final = 2**20
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE: Final = rf"[0-9]{{1,20}}(?:\.[0-9]{{1,4}})? (?:{'|'.join(_UNITS)})"
"""Pattern of a size as torch prints it."""
_GRANULE, _SMALL, _SMALL_BLOCK, _LARGE, _LARGE_BLOCK, _ROUND = 512, _MIB, 2 * _MIB, 10 * _MIB, 20 * _MIB, 2 * _MIB


def parse_size(text: str) -> int:
    """Bytes of a size such as `2.00 GiB`, rounded to a byte."""
    value, unit = text.split()
    return round(float(value) * _UNITS[unit])


def resolution(text: str) -> float:
    """Bytes by which a printed size may differ from the one that was rounded: half of its last digit."""
    value, unit = text.split()
    return 0.5 * _UNITS[unit] * float(10) ** -len(value.partition(".")[2])


def block_bytes(num_bytes: int) -> int:
    """Bytes of the block that torch asks the driver for, for a request of `num_bytes`."""
    size = -(-num_bytes // _GRANULE) * _GRANULE
    if size <= _SMALL:
        return _SMALL_BLOCK
    return _LARGE_BLOCK if size < _LARGE else -(-size // _ROUND) * _ROUND


def is_printed_as(num_bytes: int, text: str) -> bool:
    """True if torch prints a failed request of `num_bytes` as the size `text`."""
    return abs(block_bytes(num_bytes) - parse_size(text)) <= resolution(text)


