"""Measured memory over a simulated one: the curve of a snapshot, and lines at sizes that a run told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.units import format_bytes
from viz.charts.class_bars import Mark
from viz.charts.scale import BOTTOM, TOP, Scale
from viz.markup import Markup, element

__all__ = ["NOTHING", "Measured", "measured_lines"]

_WIDTH: Final = 1000


@dataclass(frozen=True, slots=True)
class Measured:
    """Sizes of a measured run. `curve`: allocated bytes over a snapshot's window; `marks`: sizes without a time."""

    curve: tuple[float, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def highest(self) -> int:
        """Bytes up to which a scale must reach."""
        return round(max((*self.curve, *(mark.num_bytes for mark in self.marks)), default=0))


NOTHING: Final = Measured()


def measured_lines(measured: Measured, scale: Scale) -> Markup | None:
    """Draws what was measured over a memory chart of that scale; None for nothing.

    The window of a snapshot takes the whole width: its events are not those of the simulation.
    """
    if not measured.curve and not measured.marks:
        return None
    marks = () if measured.curve else sorted(measured.marks, key=lambda mark: -mark.num_bytes)
    lines = (part for place, mark in enumerate(marks) for part in _line(mark, scale, above=not place))
    return element("g", _curve(measured.curve, scale), *lines, class_="measured")


def _curve(curve: Sequence[float], scale: Scale) -> Markup | None:
    if not curve:
        return None
    steps = "".join(f"V{scale.y(size):.1f}H{_WIDTH * (n + 1) / len(curve):.1f}" for n, size in enumerate(curve))
    path = element("path", element("title", f"measured, at most {format_bytes(max(curve))}"),
                   d=f"M0 {scale.y(curve[0]):.1f}{steps}", class_="measured-curve")
    stretched = element("svg", path, y=TOP, width="100%", height=BOTTOM - TOP,
                        viewBox=f"0 {TOP} {_WIDTH} {BOTTOM - TOP}", preserveAspectRatio="none")
    return element("g", stretched, element("text", "measured, over its own events", x="0", dx=6,
                                           y=scale.y(curve[0]) - 6, class_="measured-name"))


def _line(mark: Mark, scale: Scale, *, above: bool) -> Iterator[Markup]:
    """Draws a line with its size, the highest above its line and others below, so that close ones stay readable."""
    y = scale.y(mark.num_bytes)
    title = element("title", f"measured: {mark.words} {format_bytes(mark.num_bytes)}")
    yield element("line", title, x1="0", x2="100%", y1=y, y2=y, class_="measured-curve")
    yield element("text", f"measured {format_bytes(mark.num_bytes)}", x="0", dx=6, y=y - 5 if above else y + 15,
                  class_="measured-name")
