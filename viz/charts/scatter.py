"""A scatter chart of scenarios: peak memory against a time or a cost, with the Pareto edge of those that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.units import format_bytes
from viz.charts.scale import percent
from viz.charts.stack import gib_ticks
from viz.charts.value_axis import ValueAxis
from viz.markup import Markup, element, number

__all__ = ["Point", "edge", "scatter"]

TOP: Final = 22
BOTTOM: Final = TOP + 300
HEIGHT: Final = BOTTOM + 44


@dataclass(frozen=True)
class Point:
    """One scenario in a scatter: its index `row` in the list of reports, its x value, its peak in bytes.

    `verdict`: "fits" is drawn as a disc, "unsure" as a ring, any other as a cross.
    """

    row: int
    name: str
    x: float
    num_bytes: int
    verdict: str | None


def edge(points: Sequence[Point]) -> list[Point]:
    """Returns the Pareto edge by ascending x: points that surely fit, for which no other that does is as low on both.

    Of equal points only the one with the lowest `row` is on the edge.
    """
    on_edge: list[Point] = []
    for point in sorted((p for p in points if p.verdict == "fits"), key=lambda p: (p.x, p.num_bytes, p.row)):
        if not on_edge or point.num_bytes < on_edge[-1].num_bytes:
            on_edge.append(point)
    return on_edge


def scatter(points: Sequence[Point], title: str, x_name: str, show: Callable[[float], str], capacities: Sequence[int],
            identity: str) -> Markup | None:
    """Draws scenarios by x and peak memory as one `<svg>`, with the Pareto edge; None without points.

    `x_name`, `show`: the name of the x axis, and the text of its values. `capacities`: bytes of devices, drawn as lines
    where they are at most three and not far above the points. `identity`: begin of the ids in it, unique on the page.
    """
    if not points:
        return None
    axis, on_edge = ValueAxis([p.x for p in points]), edge(points)
    highest = max(p.num_bytes for p in points)
    lines = [c for c in dict.fromkeys(capacities) if c < 2.5 * highest] if len(set(capacities)) < 4 else []
    top = max([highest, *lines, 1]) * 1.06

    def y(num_bytes: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * num_bytes / top

    scale_note = " (logarithmic)" if axis.is_log else ""
    words = f"{len(points):,} scenarios, {len(on_edge)} on the Pareto edge; across {x_name}, upwards peak memory"
    marked = {point.row for point in on_edge}
    ordered = sorted(points, key=lambda p: p.row in marked)  # points of the edge are drawn over all others
    return element(
        "svg", element("title", title, id=f"{identity}-title"), element("desc", words, id=f"{identity}-desc"),
        *_frame(axis, top, y, show, f"{x_name}{scale_note}"),
        element("svg", element("path", d=_path([(axis.share(p.x), y(p.num_bytes)) for p in on_edge]), class_="edge"),
                y="0", width="100%", height=BOTTOM, viewBox=f"0 0 1000 {BOTTOM}", preserveAspectRatio="none"),
        *(_point(p, axis.share(p.x), y(p.num_bytes), " on-edge" if p.row in marked else "") for p in ordered),
        *_capacity_lines(lines, y),
        class_="chart scatter", role="img", width="100%", height=HEIGHT, aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-desc")


def _path(corners: Sequence[tuple[float, float]]) -> str:
    """Returns the SVG path of the edge, a staircase: each point holds to the right until the next one."""
    if not corners:
        return "M0 0"
    steps = "".join(f"H{number(1000 * x)}V{number(y)}" for x, y in corners[1:])
    return f"M{number(1000 * corners[0][0])} {TOP}V{number(corners[0][1])}{steps}H1000"


def _frame(axis: ValueAxis, top: float, y: Callable[[float], float], show: Callable[[float], str], name: str
           ) -> Iterator[Markup]:
    for num_bytes, label in gib_ticks(top):
        at = y(num_bytes)
        yield element("line", x1="0", x2="100%", y1=at, y2=at, class_="grid")
        yield element("text", label, x="0", dx=-8, y=at + 4, text_anchor="end", class_="tick")
    yield element("text", "GiB", x="0", dx=-8, y=TOP - 10, text_anchor="end", class_="tick unit")
    for mark in axis.marks():
        x = percent(axis.share(mark))
        yield element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, class_="base")
        yield element("text", show(mark), x=x, y=BOTTOM + 19, text_anchor="middle", class_="tick")
    yield element("line", x1="0", x2="100%", y1=BOTTOM, y2=BOTTOM, class_="base")
    yield element("text", name, x="100%", y=HEIGHT - 6, text_anchor="end", class_="tick unit")


def _capacity_lines(lines: Sequence[int], y: Callable[[float], float]) -> Iterator[Markup]:
    for capacity in lines:
        yield element("line", x1="0", x2="100%", y1=y(capacity), y2=y(capacity), class_="capacity")
        yield element("text", f"device {format_bytes(capacity)}", x="100%", dx=-4, y=y(capacity) - 6,
                      text_anchor="end", class_="capacity-name")


def _point(point: Point, share: float, y: float, css: str) -> Markup:
    """Draws a disc for a scenario that fits, a ring for an unsure one, else a cross; the script shows its name."""
    x = percent(share)
    if point.verdict in ("fits", "unsure"):
        return element("circle", cx=x, cy=y, r=4.5, class_=f"point {point.verdict}{css}", data_row=point.row)
    return element("text", "\u00d7", x=x, y=y + 6, text_anchor="middle", class_="point oom", data_row=point.row)
