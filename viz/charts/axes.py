"""The frame of the stacked chart: phase bands, both axes, the capacity line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simcore.units import format_bytes, format_seconds
from viz.charts.scale import BOTTOM, HEIGHT, LETTER, TOP, Scale, percent
from viz.charts.stack import Clock, PhaseRun, gib_ticks, ticks
from viz.markup import Markup, element
from viz.palette import swatch

__all__ = ["capacity_line", "layer_bands", "phase_bands", "phase_class", "x_axis", "y_axis"]

_STRIP: Final = 18
_BANDS: Final = 10
_PHASES: Final = ("forward", "loss", "backward", "recompute", "optimizer", "generation", "logprob", "reference",
                  "refit")


def phase_class(phase: str) -> str:
    """CSS class of a phase's band; phases that are not known share one."""
    return f"phase-{phase}" if phase in _PHASES else "phase-other"


def phase_bands(runs: Sequence[PhaseRun], scale: Scale) -> Markup:
    """A wash behind the plot and a strip under it for each phase."""
    return element("g", *(part for run in runs for part in _phase(run, scale)), class_="phases")


def _phase(run: PhaseRun, scale: Scale) -> list[Markup]:
    left, right = scale.share(run.first), scale.share(run.end)
    size = {"x": percent(left), "width": percent(right - left)}
    parts = [element("rect", y=TOP, height=BOTTOM - TOP, class_=f"wash {phase_class(run.phase)}", **size),
             element("rect", element("title", run.phase), y=BOTTOM, height=_STRIP,
                     class_=f"strip {phase_class(run.phase)}", **size),
             element("line", x1=percent(left), x2=percent(left), y1=TOP, y2=BOTTOM + _STRIP, class_="divide")]
    if right - left > (len(run.phase) + 1) * LETTER:
        narrow = right - left > 2.2 * (len(run.phase) + 1) * LETTER
        parts.append(element("text", run.phase, x=percent((left + right) / 2), y=BOTTOM + 13, text_anchor="middle",
                             class_="phase-name" if narrow else "phase-name wide"))
    return parts


def layer_bands(runs: Sequence[PhaseRun], kinds: Mapping[str, str], scale: Scale) -> Markup:
    """A thin strip under that of the phases: layers one after another, each in the look of its kind."""
    return element("g", *(_layer(run, kinds.get(run.phase, ""), scale) for run in runs if run.phase), class_="bands")


def _layer(run: PhaseRun, kind: str, scale: Scale) -> Markup:
    left, drawn = scale.share(run.first), swatch(kind)
    words = element("title", f"{run.phase} \u00b7 {kind}" if kind else run.phase)
    return element("rect", words, x=percent(left), width=percent(scale.share(run.end) - left), y=BOTTOM + _STRIP + 2,
                   height=_BANDS - 3, class_=drawn.css_class, fill=drawn.fill)


def y_axis(scale: Scale) -> Markup:
    """Grid lines and their bytes in GiB."""
    parts = []
    for num_bytes, label in gib_ticks(scale.top_bytes):
        y = scale.y(num_bytes)
        parts += [element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"),
                  element("text", label, x="0", dx=-8, y=y + 4, text_anchor="end", class_="tick")]
    unit = element("text", "GiB", x="0", dx=-8, y=TOP - 8, text_anchor="end", class_="tick unit")
    return element("g", *parts, unit, class_="y-axis")


def x_axis(scale: Scale, clock: Clock) -> Markup:
    """Marks of the clock under the phase strip."""
    marks = ticks(scale.first, scale.first + scale.span, 8)
    parts = [_x_tick(mark, index, scale, clock) for index, mark in enumerate(marks)]
    name = "event, in issue order" if clock == "issue" else "time since the step began"
    caption = element("text", name, x="100%", y=HEIGHT - 4, text_anchor="end", class_="tick unit")
    frame = element("line", x1="0", x2="100%", y1=BOTTOM, y2=BOTTOM, class_="base")
    return element("g", frame, *parts, caption, class_="x-axis")


def _x_tick(mark: float, index: int, scale: Scale, clock: Clock) -> Markup:
    share = (mark - scale.first) / scale.span
    label = f"{mark:,.0f}" if clock == "issue" else format_seconds(mark) if mark else "0"
    anchor = "start" if share < 0.03 else "end" if share > 0.97 else "middle"
    x, floor = percent(share), BOTTOM + _STRIP + _BANDS
    return element("g", element("line", x1=x, x2=x, y1=floor, y2=floor + 5, class_="base"),
                   element("text", label, x=x, y=floor + 18, text_anchor=anchor, class_="tick"),
                   class_="wide" if index % 2 else None)


def capacity_line(scale: Scale, peak_share: float) -> Markup | None:
    """The line of the device, its words on the side away from the peak."""
    if scale.capacity_bytes is None:
        return None
    y = scale.y(min(scale.capacity_bytes, scale.top_bytes))
    words = f"capacity {format_bytes(scale.capacity_bytes)}" + (", above this scale \u2191" if scale.off_scale else "")
    x, anchor = ("100%", "end") if peak_share < 0.5 else ("0", "start")
    return element("g", element("line", x1="0", x2="100%", y1=y, y2=y, class_="capacity"),
                   element("text", words, x=x, dx=-6 if anchor == "end" else 6, y=y + 16, text_anchor=anchor,
                           class_="capacity-name"), class_="device")
