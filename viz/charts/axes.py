"""The frame of the memory chart: phase bands, layer bands, both axes, the capacity line."""

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
"""Height in pixels of the strip with the names of phases."""
_BANDS: Final = 10
"""Height in pixels of the strip of layers below it."""
_PHASES: Final = ("forward", "loss", "backward", "recompute", "optimizer", "generation", "logprob", "reference",
                  "refit")


def phase_class(phase: str) -> str:
    """Returns the CSS class of the band of a phase (forward, loss, ...); unknown phases share one class."""
    return f"phase-{phase}" if phase in _PHASES else "phase-other"


def phase_bands(runs: Sequence[PhaseRun], scale: Scale) -> Markup:
    """Draws for each run of samples in one phase a pale background, and a strip with its name below."""
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
    """Draws a thin strip below that of the phases: each run of a layer in the colour of the layer's kind.

    `runs`: runs of samples in one layer; their `phase` is the layer's path. `kinds`: the kind of each layer
    (`attention`, `moe`), by its path.
    """
    return element("g", *(_layer(run, kinds.get(run.phase, ""), scale) for run in runs if run.phase), class_="bands")


def _layer(run: PhaseRun, kind: str, scale: Scale) -> Markup:
    left, paint = scale.share(run.first), swatch(kind)
    words = element("title", f"{run.phase} \u00b7 {kind}" if kind else run.phase)
    return element("rect", words, x=percent(left), width=percent(scale.share(run.end) - left), y=BOTTOM + _STRIP + 2,
                   height=_BANDS - 3, class_=paint.css_class, fill=paint.fill)


def y_axis(scale: Scale) -> Markup:
    """Draws the y axis of a memory chart: horizontal grid lines, labelled in GiB."""
    parts = []
    for num_bytes, label in gib_ticks(scale.top_bytes):
        y = scale.y(num_bytes)
        parts += [element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"),
                  element("text", label, x="0", dx=-8, y=y + 4, text_anchor="end", class_="tick")]
    unit = element("text", "GiB", x="0", dx=-8, y=TOP - 8, text_anchor="end", class_="tick unit")
    return element("g", *parts, unit, class_="y-axis")


def x_axis(scale: Scale, clock: Clock) -> Markup:
    """Draws the x axis of a memory chart: its ticks, labelled with event numbers or times.

    `clock`: "issue" for events in the order in which the host issues them, "time" for seconds since the step began.
    """
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
    """Draws the line of the device's capacity, with its label on the side away from the peak.

    `peak_share`: position of the peak across the plot, 0 to 1. A capacity above the scale is drawn at the top edge.
    Returns None without a capacity.
    """
    if scale.capacity_bytes is None:
        return None
    y = scale.y(min(scale.capacity_bytes, scale.top_bytes))
    words = f"capacity {format_bytes(scale.capacity_bytes)}" + (", above this scale \u2191" if scale.off_scale else "")
    x, anchor = ("100%", "end") if peak_share < 0.5 else ("0", "start")
    return element("g", element("line", x1="0", x2="100%", y1=y, y2=y, class_="capacity"),
                   element("text", words, x=x, dx=-6 if anchor == "end" else 6, y=y + 16, text_anchor=anchor,
                           class_="capacity-name"), class_="device")
