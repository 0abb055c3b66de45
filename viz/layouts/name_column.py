"""Names beside a chart, in a column in which none lies on another, each with a line to its point."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viz.markup import Markup, element

__all__ = ["LETTER", "LINE", "Named", "name_column", "room_for", "spread"]

LETTER: Final = 7.2
"""Width of a character in pixels, above the mean of Latin text at 12 px; East Asian ones are two."""
LINE: Final = 15
_GAP: Final = 5
_MOST_LINES: Final = 3


@dataclass(frozen=True)
class Named:
    """A point of a chart in pixels, and the name to write beside the chart."""

    x: float
    y: float
    name: str


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Returns starts of intervals of these sizes from `low` to `high`, near those wanted, that do not overlap.

    `wanted`: ascending. The sizes together are at most high - low.
    """
    starts: list[float] = []
    end = low
    for start, size in zip(wanted, sizes, strict=True):
        starts.append(max(start, end))
        end = starts[-1] + size
    for n in range(len(starts) - 1, -1, -1):
        high = starts[n] = min(starts[n], high - sizes[n])
    return starts


def _lines(name: str, width: float) -> list[str]:
    """Returns the lines of a name that is broken at spaces, or in words that are too long; at most three, then cut."""
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in name)
    letters = max(4, int(width / LETTER / (2 if wide else 1)))
    return textwrap.wrap(name, letters, max_lines=_MOST_LINES, placeholder="\u2026") or [""]


def room_for(names: Sequence[str], width: float) -> float:
    """Returns the height in pixels that names in a column of this width need."""
    return sum(len(_lines(name, width)) * LINE + _GAP for name in names)


def name_column(points: Sequence[Named], left: float, width: float, low: float, high: float) -> Markup:
    """Draws names in a column from `left` on, between the heights `low` and `high`, with lines to their points.

    `room_for` of the names is at most high - low.
    """
    ordered = sorted(points, key=lambda point: (point.y, point.x))
    texts = [_lines(point.name, width) for point in ordered]
    sizes = [len(lines) * LINE + _GAP for lines in texts]
    wanted = [point.y - size / 2 for point, size in zip(ordered, sizes, strict=True)]
    starts = spread(wanted, sizes, low, high)
    parts: list[Markup] = []
    for point, lines, start, size in zip(ordered, texts, starts, sizes, strict=True):
        middle = start + size / 2
        parts.append(element("path", d=f"M{point.x:.1f} {point.y:.1f}L{left - 22:.1f} {middle:.1f}H{left - 6:.1f}",
                             class_="leader name-leader"))
        parts += [element("text", line, x=left, y=start + _GAP / 2 + LINE * (n + 0.78), class_="front-name")
                  for n, line in enumerate(lines)]
    return element("g", *parts, class_="name-column")
