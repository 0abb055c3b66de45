"""Horizontal bars with labels, one below the other; each label is above its bar, so that a chart fits any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viz.charts.scale import percent
from viz.markup import Markup, element, join
from viz.palette import swatch

__all__ = ["Bar", "Segment", "bars", "category_segment", "shortened"]

ROW: Final = 38
_BAR: Final = 11
_WIDE: Final = 92
"""Characters of a label that fit next to its value on a screen."""
_NARROW: Final = 38
"""Characters of label and value together that fit on a telephone."""


@dataclass(frozen=True)
class Segment:
    """One part of a bar: its share of the plot's width (0 to 1), a title that a pointer shows, a filling.

    `css_class` fills it with a plain colour, `fill` (an SVG attribute) with a texture; one of them is enough.
    """

    share: float
    title: str
    css_class: str | None = None
    fill: str | None = None


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart: `label` on the left, `value` on the right, below them segments end to end.

    `brief`: label and value for a narrow screen, where they differ from those for a wide one.
    """

    label: str
    value: str
    segments: tuple[Segment, ...]
    brief: tuple[str, str] | None = None


def category_segment(share: float, category: str, title: str) -> Segment:
    """Returns a part of a bar with the colour and texture of a memory category.

    `share`: its part of the plot's width, 0 to 1; `title`: text that a pointer shows.
    """
    paint = swatch(category)
    return Segment(share, title, paint.css_class, paint.fill)


def bars(rows: Sequence[Bar], title: str, identity: str, *, end: float | None = None) -> Markup:
    """Draws a bar chart, one row below the other, as one `<svg>`.

    `identity`: begin of the ids in it, unique on the page. `end`: share of the width, 0 to 1, at which the device's
    capacity is marked; None: no mark.
    """
    words = "; ".join(f"{row.label}: {row.value}" for row in rows[:24])
    return element(
        "svg", element("title", title, id=f"{identity}-title"), element("desc", words, id=f"{identity}-desc"),
        *(_row(row, ROW * number) for number, row in enumerate(rows)),
        None if end is None else join(_end(end, ROW * number) for number in range(len(rows))),
        class_="chart bars", role="img", width="100%", height=max(ROW * len(rows), 1),
        aria_labelledby=f"{identity}-title", aria_describedby=f"{identity}-desc")


def _row(row: Bar, top: int) -> Markup:
    parts, at = [], 0.0
    for segment in row.segments:
        if segment.share > 0:
            css_class = " ".join(filter(None, ("segment", segment.css_class)))
            width = percent(max(segment.share, 0.001))
            parts.append(element("rect", element("title", segment.title), x=percent(at), y=top + 19, width=width,
                                 height=_BAR, class_=css_class, fill=segment.fill))
        at += segment.share
    track = element("rect", x="0", y=top + 19, width="100%", height=_BAR, class_="track")
    label, value = row.brief or (row.label, row.value)
    names = (element("text", shortened(text, most), x="0", y=top + 13, class_=css)
             for text, most, css in ((row.label, _WIDE, "wide"), (label, _NARROW - len(value), "narrow")))
    texts = {"value": value} if row.brief is None else {"value wide": row.value, "value narrow": value}
    values = (element("text", text, x="100%", y=top + 13, text_anchor="end", class_=css) for css, text in texts.items())
    return element("g", *names, *values, track, *parts)


def _end(share: float, top: int) -> Markup:
    return element("line", x1=percent(share), x2=percent(share), y1=top + 16, y2=top + 33, class_="end")


def shortened(text: str, most: int) -> str:
    """Returns `text`, or where it is longer than `most` characters, its two ends around an ellipsis."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}\u2026{text[-most // 2 + 1 :]}"
