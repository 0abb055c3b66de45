"""Rate of a GPU's matrix units under a power limit below what its model may draw (`nvidia-smi -pl`).

A GPU that would draw more than its limit lowers the clock and voltage of its multiprocessors, not the clock of its
memory. Power is voltage squared times clock, so the first watts cost little speed: [Note: power and rate].

[Note: power and rate]
Measured on an A100 SXM at fixed clocks from 1410 down to 1095 MHz: stages of GPT-3 175B and BLOOM 176B in bf16, forward
and backward, with time and energy (the data of Perseus, arXiv 2312.06902: ml-energy/zeus 38cb3f90
`sosp24_data/emulation/stage_profile`). The table has the means of the four, relative to 1410 MHz, where the GPU was at
its limit. ResNet-50 on a V100 of 250 W under limits (the data of Zeus, the same repository,
`zeus_nsdi23/trace/summary_power_v100.csv`) draws 0.66, 0.74 and 0.83 of its power at 0.85, 0.91 and 0.95 of its speed:
the table says 0.87, 0.91 and 0.95. Below `LEAST` the voltage is at its least and GPUs part: at 0.59 an A40 has 0.61 of
its speed and an A100 0.82. So lower limits are refused.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

__all__ = ["LEAST", "rate_share"]

MEASURED: Final = ((0.627, 0.852), (0.663, 0.871), (0.697, 0.892), (0.735, 0.912), (0.781, 0.932), (0.824, 0.951),
                   (0.883, 0.969), (0.933, 0.983), (0.975, 0.996), (1.0, 1.0))
"""(share of the power, share of the rate), rising."""
LEAST: Final = 0.65
"""Smallest share of a GPU's power for which the relation is taken to hold."""


def rate_share(power_share: float) -> float:
    """Share of their rate that matrix units reach under a limit of this share of the GPU's power, from `LEAST` to 1.

    Straight between the measured points.
    """
    assert LEAST <= power_share <= 1
    place = min(bisect_right(MEASURED, (power_share, 2.0)), len(MEASURED) - 1)
    (low, slow), (high, fast) = MEASURED[place - 1], MEASURED[place]
    return slow + (fast - slow) * (power_share - low) / (high - low)
