"""Results of a layout that a search ranks by, as numbers on axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.results.found import FoundLayout, SearchResult
from simcore.units import format_seconds

__all__ = ["MEASURES", "Measure", "measures_of", "pairs_of"]


_MANY: Final = 10


@dataclass(frozen=True)
class Measure:
    """A result of a layout: its name among the objectives of a search, the words on its axis, and its value.

    `value` is None where a layout has none (a cost without a price). `show`: text of a value, `tick` of one on an axis.
    `gains`: more of it is better.
    """

    name: str
    words: str
    value: Callable[[FoundLayout], float | None]
    show: Callable[[float], str]
    tick: Callable[[float], str]
    gains: bool = False

    @property
    def better(self) -> str:
        """Words on the side of an axis where good values are."""
        return "more is better" if self.gains else "less is better"


MEASURES: Final = {one.name: one for one in (
    Measure("tokens", "tokens/s per GPU", lambda layout: layout.tokens_per_s_per_gpu, lambda value: f"{value:,.0f}",
            lambda value: f"{value:,.0f}" if value >= _MANY else f"{value:g}", gains=True),
    Measure("step", "time of a step", lambda layout: layout.step_s, format_seconds,
            lambda value: format_seconds(value) if value else "0"),
    Measure("cost", "USD per million tokens", lambda layout: layout.usd_per_million_tokens,
            lambda value: f"{value:,.3g} USD", lambda value: f"{value:,.3g}"),
    Measure("peak", "peak memory in GiB", lambda layout: layout.peak_bytes / 2**30, lambda value: f"{value:.2f} GiB",
            lambda value: f"{value:g}"),
    Measure("gpus", "GPUs", lambda layout: layout.num_gpus, lambda value: f"{value:,.0f} GPUs",
            lambda value: f"{value:g}"),
)}
"""Measures by the name of their objective."""


def measures_of(result: SearchResult) -> list[Measure]:
    """Returns the measures in which layouts of a search differ or by which it ranks, and that all of them have.

    The number of GPUs is a key where the search does not rank by it.
    """
    asked = [MEASURES[name] for name in result.objectives if name in MEASURES]
    others = [one for one in MEASURES.values() if one not in asked and one.name != "gpus"]
    has_all = [one for one in (*asked, *others) if all(one.value(layout) is not None for layout in result.ranked)]
    return [one for one in has_all if one in asked or len({one.value(layout) for layout in result.ranked}) > 1]


def pairs_of(result: SearchResult) -> list[tuple[Measure, Measure]]:
    """Returns the measures of each Pareto chart: across and upwards; upwards is what the search ranks by.

    With one objective peak memory is across, or tokens/s per GPU where the objective is memory itself.
    """
    asked: Sequence[str] = result.objectives if len(result.objectives) > 1 else (
        *result.objectives, "tokens" if result.objectives == ("peak",) else "peak")
    known = {one.name: one for one in measures_of(result)} | {name: MEASURES[name] for name in ("tokens", "peak")}
    first, *others = (known[name] for name in asked if name in known)
    return [(other, first) for other in others]
