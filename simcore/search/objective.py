"""Objectives of a search: quantities to rank layouts by, each with a lower bound that needs no time of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simcore.search.judge import Sized

__all__ = ["OBJECTIVES", "Objective", "Value"]

Value = tuple[float, ...]
"""Comparable value of a layout, smaller first; later places decide between equal earlier ones."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A quantity to rank by.

    `value(layout, seconds of a step)`: never falls if the seconds rise, so a lower bound of the seconds gives a lower
    bound of the value. `words`: what is best, for a person.
    """

    name: str
    words: str
    value: Callable[[Sized, float], Value]


def _gpu_seconds(layout: Sized, seconds: float) -> float:
    """GPU seconds of one token."""
    return seconds * layout.num_gpus / layout.tokens


def _dollars(layout: Sized, seconds: float) -> float:
    """US dollars of one token; infinite without a price."""
    return float("inf") if layout.price is None else _gpu_seconds(layout, seconds) * layout.price / 3600


OBJECTIVES: Final = {one.name: one for one in (
    Objective("tokens", "most tokens/s per GPU", lambda layout, s: (_gpu_seconds(layout, s), layout.peak_bytes)),
    Objective("step", "shortest step", lambda layout, s: (s, layout.num_gpus, layout.peak_bytes)),
    Objective("cost", "fewest USD per token", lambda layout, s: (_dollars(layout, s), s)),
    Objective("peak", "lowest peak memory", lambda layout, s: (layout.peak_bytes, _gpu_seconds(layout, s))),
    Objective("gpus", "fewest GPUs", lambda layout, s: (layout.num_gpus, _gpu_seconds(layout, s))),
)}
"""Objectives by the name that a user gives; the first is the default."""
