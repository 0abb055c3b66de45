"""Values that readers of training logs produce: numbers with their quantity, rank and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["COUNT", "GIB", "MIB", "NUMBER", "Log", "Reading", "highest", "number", "steady"]

MIB, GIB = 2**20, 2**30
NUMBER: Final = r"([0-9][0-9,]{0,30}(?:\.[0-9]+)?)"
COUNT: Final = r"([0-9]{1,15})"
"""A count with a limited number of digits, because Python converts very long numbers slowly or not at all."""


@dataclass(frozen=True)
class Reading:
    """One number from a log. `of`: its quantity; `rank`: of its line, None if that names none.

    Quantities: `allocated_peak`, `allocated_peak_first` (of the first iteration), `allocated_end`, `allocated_start`
    (before the first step), `reserved_peak` in bytes; `step_s`; seconds of a part of the step, such as `forward_s` or
    `generation_s`; `tokens_per_s_per_gpu`, `trained_tokens_per_s_per_gpu` (those with a loss), `tflops_per_gpu`,
    `tokens_per_s` and `samples_per_s` of all GPUs, `mfu` (a share). `after`: iteration or step of the line, None for a
    median of `num_lines` lines. `note`: a remark that replaces the usual one.
    """

    of: str
    value: float
    rank: int | None = None
    after: int | None = None
    num_lines: int = 1
    note: str = ""


@dataclass(frozen=True)
class Log:
    """Numbers of one training log. `trainer`: program that printed it.

    `readings`: in no fixed order; `batch`: global batch size in sequences, None if it is not printed or varies.
    `notes`: remarks on what the numbers are of.
    """

    trainer: str
    readings: tuple[Reading, ...]
    batch: int | None = None
    notes: tuple[str, ...] = ()


def steady(what: str, values: Sequence[float], note: str = "") -> list[Reading]:
    """Median of all values but the first; [] without values."""
    later = values[1:] or values
    return [Reading(what, median(later), num_lines=len(later), note=note)] if later else []


def highest(what: str, values: Sequence[tuple[int | None, float]], rank: int | None = None, note: str = ""
            ) -> list[Reading]:
    """Highest of values in bytes that come as (step, value); [] without values."""
    if not values:
        return []
    after, most = max(values, key=lambda row: row[1])
    return [Reading(what, most, rank, after, len(values), note)]


def number(text: str) -> float:
    """Value of a number with commas between thousands."""
    return float(text.replace(",", ""))
