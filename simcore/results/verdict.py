"""Verdicts on device memory: a job fits, runs out of memory, or measured errors leave it open.

[Note: unsure]
Simulated memory has a band, the range of measured over simulated memory of runs of its class (`simcore.memory.band`).
Below the limit with its whole band a job fits, above the limit with its whole band it runs out of memory; a band that
contains the limit decides neither, on whichever side the likely value is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

__all__ = ["SEVERITY", "Verdict", "verdict_of"]

Verdict = Literal["fits", "unsure", "oom"]

SEVERITY: Final[dict[str, int]] = {"fits": 0, "unsure": 1, "oom": 2}
"""Order of verdicts from good to bad."""


def verdict_of(bands: Iterable[tuple[int, int]], limit: int) -> Verdict:
    """Verdict of a job whose ranks need device memory in the ranges `bands` (low, high), in bytes.

    `limit`: bytes of a device that the job may fill. The fullest rank decides, for each end of the range by itself.
    """
    lows, highs = zip(*bands, strict=True)
    return "fits" if max(highs) <= limit else "unsure" if max(lows) <= limit else "oom"
