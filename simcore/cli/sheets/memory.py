"""Memory as figures for a terminal: a bar for each class of ranks, and a line of memory over the step.

They fit the terminal's width. Colour only repeats the numbers; `stdio.py` has the replacements of blocks that a
terminal cannot show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from simcore.cli.sheets.levels import LEVELS
from simcore.cli.sheets.tables import plain
from simcore.results.report import MemorySeries, RankReport, Report
from simcore.units import format_bytes

__all__ = ["Bars", "Spark", "memorysheet"]

_LINE: Final = 72
"""Most characters of the line."""
_BAR: Final = (8, 48)
"""Fewest and most characters of a bar."""
_MOST_CLASSES: Final = 12
_NAME: Final = 24
_REST, _MORE, _ROOM, _END = "\u2588", "\u2593", "\u2591", "\u2502"


def memorysheet(reports: Sequence[Report]) -> list[RenderableType]:
    """Bars of the ranks' memory of a single report, and a line of memory over the step if that is known.

    [] for several reports, or without a peak.
    """
    if len(reports) != 1 or reports[0].peak_rank is None:
        return []
    rank = reports[0].peak_rank
    line: list[RenderableType] = ["", Spark(rank.memory)] if rank.memory and rank.memory.event_index else []
    return [Bars(reports[0]), *line]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars for a terminal, one a class of ranks (equal memory): bytes at rest, then the rest of the peak.

    A vertical line is the end of the device. At most 12 classes, the fullest; a legend is below.
    """

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = _fullest(self.report)
        names = [_name(rank) for rank in shown]
        wide = max(map(cell_len, names), default=0)
        room = options.max_width - wide - len("  |  100.00 GiB 100%")
        width = max(_BAR[0], min(_BAR[1], room))
        for name, rank in zip(names, shown, strict=True):
            yield self._row(f"{name:{wide}}  ", rank, width)
        left = sum(1 for rank in self.report.ranks if rank.peak) - len(shown)
        if left > 0:
            yield Text(f"and {left:,} more classes of ranks, none of them fuller")
        yield Text(f"{'':{wide}}  {_REST} at rest  {_MORE} besides at the peak  {_END} end of the device")

    def _row(self, name: str, rank: RankReport, width: int) -> Text:
        used = rank.peak.device_bytes if rank.peak else 0
        capacity = self.report.capacity_bytes or 0
        full_scale = max(capacity, *(other.peak.device_bytes for other in self.report.ranks if other.peak), 1)
        rest, full, end = (round(width * n / full_scale) for n in (min(rank.at_rest_bytes(), used), used, capacity))
        cells = _REST * rest + _MORE * (full - rest) + _ROOM * (width - full)
        colour = "" if not capacity else "green" if used <= capacity else "bold red"
        share = f" {used / capacity:4.0%}" if capacity else ""
        drawn = Text.assemble((cells[:end], colour), _END, (cells[end:], colour)) if capacity else Text(cells)
        return Text.assemble(name, drawn, f"  {format_bytes(used):>10}{share}")


def _fullest(report: Report) -> list[RankReport]:
    """Classes with the highest peaks if there are many, in the order of the result."""
    sizes = [(rank.peak.device_bytes, -n) for n, rank in enumerate(report.ranks) if rank.peak]
    kept = sorted(-n for _, n in sorted(sizes, reverse=True)[:_MOST_CLASSES])
    return [report.ranks[n] for n in kept]


def _name(rank: RankReport) -> str:
    text = plain(", ".join(rank.ranks))
    who = "rank" if rank.num_ranks == 1 else "ranks"
    return f"{who} {text if len(text) <= _NAME else f'{text[: _NAME - 2]}..'}"


@dataclass(frozen=True, slots=True)
class Spark:
    """Allocated memory of one class of ranks over the step, as a line of blocks scaled from lowest to highest.

    Below it: a letter where each phase (forward, backward ...) begins, and their names.
    """

    memory: MemorySeries

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        totals = [sum(values) for values in zip(*self.memory.values, strict=True)]
        if not totals:
            return
        width = min(_LINE, options.max_width, len(totals))
        parts = [range(n * len(totals) // width, (n + 1) * len(totals) // width) for n in range(width)]
        phases = [plain(self.memory.phases[part[-1]]) for part in parts]
        letters = _letters(phases)
        ends = " to ".join(map(format_bytes, (min(totals), max(totals))))
        yield Text(f"allocated over the step, in issue order: {ends}")
        yield Text(_line([max(totals[i] for i in part) for part in parts], min(totals)))
        yield Text("".join(letters[name] if not n or phases[n - 1] != name else "." for n, name in enumerate(phases)))
        yield Text(", ".join(f"{letter} {name}" for name, letter in letters.items()))


def _line(tops: Sequence[int], low: int) -> str:
    span = max(1, max(tops) - low)
    return "".join(LEVELS[min(7, (top - low) * 8 // span)] for top in tops)


def _letters(phases: Sequence[str]) -> dict[str, str]:
    """Letter of each phase: the first of its name that no earlier phase has; it is shown where the phase begins."""
    letters: dict[str, str] = {}
    for name in dict.fromkeys(phases):
        letters[name] = next((sign for sign in name.upper() if sign not in letters.values()), "*")
    return letters
