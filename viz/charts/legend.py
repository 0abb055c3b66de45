"""Keys of pictures: which look means what, as a list on a page, or as a drawing under a figure by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viz.markup import Markup, element
from viz.palette import swatch

__all__ = ["Look", "drawn_key", "key", "look_of"]

_LETTER: Final = 6.8
_ROW: Final = 22


@dataclass(frozen=True)
class Look:
    """How something is filled, what it is, and maybe how much of it there is; without a fill only words."""

    words: str
    css_class: str | None = None
    fill: str | None = None
    note: str = ""

    @property
    def is_drawn(self) -> bool:
        return bool(self.css_class or self.fill)


def look_of(name: str, note: str = "") -> Look:
    """Of a category, component or kind of layer."""
    drawn = swatch(name)
    return Look(name, drawn.css_class, drawn.fill, note)


def key(looks: Sequence[Look], label: str) -> Markup:
    """As a list."""
    return element("ul", *map(_row, looks), class_="key", aria_label=label)


def _row(look: Look) -> Markup:
    sample = element("svg", _sample(look, 0.5, 0.5), width=22, height=16, aria_hidden="true")
    return element("li", sample if look.is_drawn else None, element("span", look.words, class_="label"),
                   element("span", look.note, class_="bytes") if look.note else None)


def _sample(look: Look, x: float, y: float) -> Markup:
    shape = " ".join(filter(None, ("sample", look.css_class)))
    return element("rect", x=x, y=y, width=21, height=15, rx=2, fill=look.fill, class_=shape)


def drawn_key(looks: Sequence[Look], width: int) -> tuple[Markup, int]:
    """As a drawing of at most `width` pixels, and its height."""
    parts, x, y = [], 0.0, 0
    for look in looks:
        words = " ".join(filter(None, (look.words, look.note)))
        room = len(words) * _LETTER + 30 * look.is_drawn + 22
        if x and x + room > width:
            x, y = 0.0, y + _ROW
        if look.is_drawn:
            parts.append(_sample(look, x + 0.5, y + 0.5))
        parts.append(element("text", words, x=x + 28 * look.is_drawn, y=y + 13))
        x += room
    return element("g", *parts), y + _ROW
