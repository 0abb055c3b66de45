"""Labelled bars, one below the other: words on a line, the bar under it, so that it fits any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viz.charts.scale import percent
from viz.markup import Markup, element, join
from viz.palette import swatch

__all__ = ["Bar", "Segment", "bars", "of_category", "short"]

ROW: Final = 38
_BAR: Final = 11
_WIDE: Final = 92
"""Letters of a label that fit beside its value on a screen."""
_NARROW: Final = 37
"""Letters of both that fit on a telephone."""


@dataclass(frozen=True)
class Segment:
    """A part of a bar: its share of the plot's width, how it is filled, and what it is."""

    share: float
    title: str
    css_class: str | None = None
    fill: str | None = None


@dataclass(frozen=True)
class Bar:
    """`label` stands on the left, `value` on the right, the segments end to end below.

    `brief`: both where there is little room, if they differ there.
    """

    label: str
    value: str
    segments: tuple[Segment, ...]
    brief: tuple[str, str] | None = None


def of_category(share: float, category: str, title: str) -> Segment:
    """A segment that is filled as the category is everywhere."""
    drawn = swatch(category)
    return Segment(share, title, drawn.css_class, drawn.fill)


def bars(rows: Sequence[Bar], title: str, identity: str, *, end: float | None = None) -> Markup:
    """The picture, as high as it has rows. `end`: the share of the width where a device ends, if it is marked."""
    words = "; ".join(f"{row.label}: {row.value}" for row in rows[:24])
    return element(
        "svg", element("title", title, id=f"{identity}-title"), element("desc", words, id=f"{identity}-desc"),
        *(_row(row, ROW * number) for number, row in enumerate(rows)),
        None if end is None else join(_end(end, ROW * number) for number in range(len(rows))),
        class_="chart bars", role="img", width="100%", height=max(ROW * len(rows), 1),
        aria_labelledby=f"{identity}-title", aria_describedby=f"{identity}-desc")


def _row(row: Bar, top: int) -> Markup:
    parts, at = [], 0.0
    for one in row.segments:
        if one.share > 0:
            shape = " ".join(filter(None, ("segment", one.css_class)))
            parts.append(element("rect", element("title", one.title), x=percent(at), y=top + 19,
                                 width=percent(max(one.share, 0.001)), height=_BAR, class_=shape, fill=one.fill))
        at += one.share
    track = element("rect", x="0", y=top + 19, width="100%", height=_BAR, class_="track")
    label, value = row.brief or (row.label, row.value)
    names = (element("text", short(text, most), x="0", y=top + 13, class_=css)
             for text, most, css in ((row.label, _WIDE, "wide"), (label, _NARROW - len(value), "narrow")))
    told = {"value": value} if row.brief is None else {"value wide": row.value, "value narrow": value}
    values = (element("text", text, x="100%", y=top + 13, text_anchor="end", class_=css) for css, text in told.items())
    return element("g", *names, *values, track, *parts)


def _end(share: float, top: int) -> Markup:
    return element("line", x1=percent(share), x2=percent(share), y1=top + 16, y2=top + 33, class_="end")


def short(text: str, most: int) -> str:
    """`text` with its middle left out when it is long; its ends tell most."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}\u2026{text[-most // 2 + 1 :]}"
