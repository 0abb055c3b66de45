"""Legends of charts: colours and textures with their meaning, as an HTML list or as a drawing below a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viz.markup import Markup, element
from viz.palette import swatch

__all__ = ["LegendEntry", "entry_of", "legend", "legend_drawing"]

_LETTER: Final = 6.8
"""Width of a character in pixels, on average."""
_ROW: Final = 22


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend: its words, the CSS class or paint of its sample, a note such as its bytes.

    Without a class and a paint (`fill`) it is only text.
    """

    words: str
    css_class: str | None = None
    fill: str | None = None
    note: str = ""

    @property
    def has_sample(self) -> bool:
        """Tells whether a sample of a colour or texture is drawn before the words."""
        return bool(self.css_class or self.fill)


def entry_of(name: str, note: str = "") -> LegendEntry:
    """Returns the legend entry of a category, component or kind of layer, in its colour and texture.

    `note`: text after its name, such as its bytes.
    """
    paint = swatch(name)
    return LegendEntry(name, paint.css_class, paint.fill, note)


def legend(entries: Sequence[LegendEntry], label: str) -> Markup:
    """Returns the entries as an HTML list; `label` is its name for screen readers."""
    return element("ul", *map(_row, entries), class_="key", aria_label=label)


def _row(entry: LegendEntry) -> Markup:
    sample = element("svg", _sample(entry, 0.5, 0.5), width=22, height=16, aria_hidden="true")
    return element("li", sample if entry.has_sample else None, element("span", entry.words, class_="label"),
                   element("span", entry.note, class_="bytes") if entry.note else None)


def _sample(entry: LegendEntry, x: float, y: float) -> Markup:
    css_class = " ".join(filter(None, ("sample", entry.css_class)))
    return element("rect", x=x, y=y, width=21, height=15, rx=2, fill=entry.fill, class_=css_class)


def legend_drawing(entries: Sequence[LegendEntry], width: int) -> tuple[Markup, int]:
    """Returns the entries as an SVG group at most `width` pixels wide, and its height in pixels."""
    parts, x, y = [], 0.0, 0
    for entry in entries:
        words = " ".join(filter(None, (entry.words, entry.note)))
        room = len(words) * _LETTER + 30 * entry.has_sample + 22
        if x and x + room > width:
            x, y = 0.0, y + _ROW
        if entry.has_sample:
            parts.append(_sample(entry, x + 0.5, y + 0.5))
        parts.append(element("text", words, x=x + 28 * entry.has_sample, y=y + 13))
        x += room
    return element("g", *parts), y + _ROW
