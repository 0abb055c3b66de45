"""The Pareto chart of a search: its layouts by two measures, with the set in which none is worse in both joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.results.found import FoundLayout
from viz.charts.scale import percent
from viz.charts.value_axis import ValueAxis
from viz.layouts.measure import Measure
from viz.markup import Markup, element, number

__all__ = ["BOTTOM", "HEIGHT", "TOP", "Place", "front", "front_chart", "placed"]

TOP: Final = 22
BOTTOM: Final = TOP + 320
HEIGHT: Final = BOTTOM + 44


@dataclass(frozen=True)
class Place:
    """A layout in a Pareto chart: its index `row`, its two values, and where they are, 0 to 1 from left and bottom."""

    row: int
    x: float
    y: float
    right: float
    up: float
    is_sure: bool = True

    @property
    def top(self) -> float:
        """Position in pixels from the top of the chart."""
        return BOTTOM - (BOTTOM - TOP) * self.up


@dataclass(frozen=True)
class _Axes:
    across: Measure
    upwards: Measure
    x: ValueAxis
    y: ValueAxis


def _axes(points: Sequence[tuple[float, float]], across: Measure, upwards: Measure) -> _Axes:
    return _Axes(across, upwards, ValueAxis([x for x, _ in points]), ValueAxis([y for _, y in points]))


def placed(layouts: Sequence[FoundLayout], across: Measure, upwards: Measure) -> list[Place]:
    """Returns where layouts are in the chart of two measures, in their order; without those that lack a value."""
    values = [(row, x, y) for row, one in enumerate(layouts)
              if (x := across.value(one)) is not None and (y := upwards.value(one)) is not None]
    if not values:
        return []
    axes = _axes([(x, y) for _, x, y in values], across, upwards)
    return [Place(row, x, y, axes.x.share(x), axes.y.share(y), layouts[row].verdict == "fits") for row, x, y in values]


def front(shown: Sequence[Place], across: Measure, upwards: Measure) -> list[Place]:
    """Returns the Pareto set of two measures, from the best across to the best upwards.

    Layouts that are equal in both are all in it.
    """
    right, up = (-1 if across.gains else 1), (-1 if upwards.gains else 1)
    kept: list[Place] = []
    for place in sorted(shown, key=lambda place: (right * place.x, up * place.y, place.row)):
        if not kept or up * place.y < up * kept[-1].y or (place.x, place.y) == (kept[-1].x, kept[-1].y):
            kept.append(place)
    return kept


def front_chart(shown: Sequence[Place], across: Measure, upwards: Measure, identity: str) -> Markup | None:
    """Draws layouts by two measures as one `<svg>`, with their Pareto set joined by a staircase; None without any.

    `identity`: begin of the ids in it, unique on the page. The script finds in its data which measures they are, in
    which direction they are better, and the ends of the axes.
    """
    if not shown:
        return None
    axes, joined = _axes([(place.x, place.y) for place in shown], across, upwards), front(shown, across, upwards)
    marked = {place.row for place in joined}
    ordered = sorted(shown, key=lambda place: place.row in marked)  # points of the set are drawn over all others
    title = f"{_named(upwards)} against {across.words}"
    words = (f"{len(shown):,} layouts, {len(joined):,} in the Pareto set; across {across.words} ({across.better}), "
             f"upwards {upwards.words} ({upwards.better})")
    return element(
        "svg", element("title", title, id=f"{identity}-title"), element("desc", words, id=f"{identity}-desc"),
        *_frame(axes),
        element("svg", element("path", d=_stairs(joined, across, upwards), class_="edge"), y="0", width="100%",
                height=BOTTOM, viewBox=f"0 0 1000 {BOTTOM}", preserveAspectRatio="none"),
        *(_point(place, " on-edge" if place.row in marked else "") for place in ordered),
        class_="chart scatter pareto", role="img", width="100%", height=HEIGHT, aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-desc", data_x=_data(axes.x, across), data_y=_data(axes.y, upwards))


def _named(measure: Measure) -> str:
    return f"{measure.words[0].upper()}{measure.words[1:]}"


def _data(axis: ValueAxis, measure: Measure) -> str:
    """Returns name, direction (1: less is better), low, high and 1 for a logarithmic axis, separated by spaces."""
    return f"{measure.name} {-1 if measure.gains else 1} {axis.low!r} {axis.high!r} {int(axis.is_log)}"


def _stairs(joined: Sequence[Place], across: Measure, upwards: Measure) -> str:
    """Returns the SVG path of the set's edge: each point holds from where it is to the worse side of both axes."""
    first = joined[0]
    start = f"M{number(1000 * first.right)} {BOTTOM if upwards.gains else TOP}V{number(first.top)}"
    steps = "".join(f"H{number(1000 * place.right)}V{number(place.top)}" for place in joined[1:])
    return f"{start}{steps}H{0 if across.gains else 1000}"


def _frame(axes: _Axes) -> Iterator[Markup]:
    for mark in axes.y.marks():
        at = BOTTOM - (BOTTOM - TOP) * axes.y.share(mark)
        yield element("line", x1="0", x2="100%", y1=at, y2=at, class_="grid")
        yield element("text", axes.upwards.tick(mark), x="0", dx=-8, y=at + 4, text_anchor="end", class_="tick")
    yield element("text", f"{axes.upwards.words}{_log(axes.y)}, {axes.upwards.better}", x="0", dx=-36, y=TOP - 10,
                  class_="tick unit")
    for index, mark in enumerate(axes.x.marks()):
        x = percent(axes.x.share(mark))
        yield element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, class_="base")
        yield element("text", axes.across.tick(mark), x=x, y=BOTTOM + 19, text_anchor="middle",
                      class_="tick wide" if index % 2 else "tick")
    yield element("line", x1="0", x2="100%", y1=BOTTOM, y2=BOTTOM, class_="base")
    yield element("text", f"{axes.across.words}{_log(axes.x)}, {axes.across.better}", x="100%", y=HEIGHT - 6,
                  text_anchor="end", class_="tick unit")


def _log(axis: ValueAxis) -> str:
    return " (logarithmic)" if axis.is_log else ""


def _point(place: Place, css: str) -> Markup:
    kind = "fits" if place.is_sure else "fits unsure"
    return element("circle", cx=percent(place.right), cy=place.top, r=4.5, class_=f"point {kind}{css}",
                   data_row=place.row)
