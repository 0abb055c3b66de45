"""The memory chart of one class of ranks: allocated bytes over the step, stacked by category, as one SVG.

Horizontal positions are percentages, so that the chart fills any width while its text keeps its size; only the bands
are in an inner SVG that stretches. Vertical positions are CSS pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simcore.results.report import MemorySeries, Peak, RankReport
from simcore.units import format_bytes
from viz.charts.axes import capacity_line, layer_bands, phase_bands, x_axis, y_axis
from viz.charts.bars import shortened
from viz.charts.measured import NOTHING, Measured, measured_lines
from viz.charts.scale import BOTTOM, HEIGHT, LETTER, TOP, Scale, percent, scale_of
from viz.charts.stack import Band, Clock, layer_order, layer_runs, peak_index, phase_runs, stack, totals
from viz.markup import Markup, element, join
from viz.palette import swatch

__all__ = ["WIDTH", "memory_chart", "text_alternative"]

WIDTH: Final = 1000
_READABLE: Final = 17  # least height in pixels of a band that is labelled
_ROOMY: Final = 30  # height in pixels above which the place in the plot decides where the label is


def memory_chart(rank: RankReport, capacity_bytes: int | None, clock: Clock, identity: str, *,
                 kinds: Mapping[str, str] | None = None, stacked_by: str = "category", at_least: int = 0,
                 measured: Measured = NOTHING) -> Markup:
    """Draws the allocated bytes of one class of ranks over the step, stacked by category, as one `<svg>`.

    `clock`: the x axis has events ("issue") or seconds ("time"). `identity`: begin of the ids in it, unique on the
    page. `kinds`: the kind of each layer, by path. `stacked_by`: the word for what the bands are, in the title.
    `at_least`: bytes up to which the scale reaches, where charts are compared. `measured`: drawn over it. ValueError:
    the class has no memory over the step.
    """
    series = rank.memory
    if series is None or not series.event_index:
        raise ValueError("this class of ranks has no memory series to draw")
    scale = scale_of(rank, series, clock, capacity_bytes, max(at_least, measured.highest))
    bands = stack(series, layer_order(rank))
    title, description = text_alternative(rank, capacity_bytes, clock, stacked_by)
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", description, id=f"{identity}-desc"),
        phase_bands(phase_runs(series), scale),
        layer_bands(layer_runs(series), kinds or {}, scale),
        y_axis(scale),
        _bands(bands, scale),
        _names(bands, scale),
        x_axis(scale, clock),
        measured_lines(measured, scale), capacity_line(scale, scale.share(peak_index(series))),
        _peak(series, rank.peak, scale),
        class_="chart", role="img", width="100%", height=HEIGHT,
        aria_labelledby=f"{identity}-title", aria_describedby=f"{identity}-desc")


def text_alternative(rank: RankReport, capacity_bytes: int | None, clock: Clock, stacked_by: str = "category"
                     ) -> tuple[str, str]:
    """Returns (title, description) of a memory chart as text, for screen readers.

    The arguments are those of `memory_chart`.
    """
    axis = "in issue order" if clock == "issue" else "over time"
    title = f"Allocated memory of ranks {', '.join(rank.ranks)} {axis}, stacked by {stacked_by}"
    parts = [f"Capacity of the device {format_bytes(capacity_bytes)}."] if capacity_bytes is not None else []
    if rank.peak:
        peak = rank.peak
        parts.insert(0, f"Highest at {format_bytes(peak.allocated_bytes)} allocated, phase {peak.phase}, "
                        f"event {peak.event}, layer {peak.layer}.")
        sizes = [f"{name} {format_bytes(peak.by_category[name])}" for name in
                 sorted(peak.by_category, key=lambda name: -peak.by_category[name])]
        parts.append(f"At the peak: {', '.join(sizes)}.")
    return title, " ".join(parts)


def _bands(bands: Sequence[Band], scale: Scale) -> Markup:
    shapes = [_band(band, scale) for band in bands]
    upper = bands[0].upper if bands else ()
    line = element("path", d=_steps(upper, scale, 0, len(upper)), class_="total")
    return element("svg", *shapes, line, class_="layers", y=TOP, width="100%", height=BOTTOM - TOP,
                   viewBox=f"0 {TOP} {WIDTH} {BOTTOM - TOP}", preserveAspectRatio="none")


def _band(band: Band, scale: Scale) -> Markup | None:
    parts = [_outline(band, scale, first, end) for first, end in _present(band.heights)]
    if not parts:
        return None
    paint = swatch(band.category)
    title = element("title", f"{band.category}, at most {format_bytes(max(band.heights))}")
    return element("path", title, d="".join(parts), class_=" ".join(filter(None, ("layer", paint.css_class))),
                   fill=paint.fill, data_category=band.category)


def _present(heights: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (first, end) of each run of samples in which the category has bytes."""
    marks = [i for i in range(len(heights) + 1)
             if bool(heights[i] if i < len(heights) else 0) != bool(heights[i - 1] if i else 0)]
    return list(zip(marks[::2], marks[1::2], strict=True))


def _steps(levels: Sequence[int], scale: Scale, first: int, end: int) -> str:
    """Returns the SVG path along the levels of samples first..end-1; each level holds until the next sample."""
    command = f"M{_tenths(WIDTH * scale.share(first))} {_tenths(scale.y(levels[first]))}"
    return command + _along(levels, scale, range(first + 1, end), levels[first]) + _across(scale, end)


def _outline(band: Band, scale: Scale, first: int, end: int) -> str:
    """Returns the closed path of a band: along its upper edge to the right, back along its lower edge."""
    back = f"V{_tenths(scale.y(band.lower[end - 1]))}"
    for i in range(end - 2, first - 1, -1):
        if band.lower[i] != band.lower[i + 1]:
            back += f"{_across(scale, i + 1)}V{_tenths(scale.y(band.lower[i]))}"
    return f"{_steps(band.upper, scale, first, end)}{back}{_across(scale, first)}Z"


def _along(levels: Sequence[int], scale: Scale, samples: range, level: int) -> str:
    command = ""
    for i in samples:
        if levels[i] != level:
            level = levels[i]
            command += f"{_across(scale, i)}V{_tenths(scale.y(level))}"
    return command


def _tenths(value: float) -> str:
    """Returns a coordinate to a tenth of a pixel: finer ones would not be visible, and paths are long."""
    return f"{value:.1f}".removesuffix(".0")


def _across(scale: Scale, index: int) -> str:
    return f"H{_tenths(WIDTH * scale.share(index))}"


def _names(bands: Sequence[Band], scale: Scale) -> Markup:
    """Labels the bands that are thick enough, where the band is thickest over the width of the label."""
    return element("g", *(_name(band, scale) for band in bands), class_="names wide")


def _name(band: Band, scale: Scale) -> Markup | None:
    if scale.y(0) - scale.y(max(band.heights)) < _READABLE:
        return None
    room, shares = (len(band.category) + 2) * LETTER, scale.shares
    best: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    end, last = 0, len(band.upper)
    for first in range(0, last, max(1, last // 150)):
        while end < last and shares[end] - shares[first] < room:
            end += 1
        if shares[end] - shares[first] < room:
            break
        low, high = max(band.lower[first:end]), min(band.upper[first:end])
        middle = (shares[first] + shares[end]) / 2
        thickness = min(scale.y(low) - scale.y(high), _ROOMY)
        best = max(best, (thickness, -abs(middle - 0.4), middle, (low + high) / 2))
    thickness, _, middle, level = best
    if thickness < _READABLE:
        return None
    return element("text", band.category, x=percent(middle), y=scale.y(level) + 4, text_anchor="middle",
                   class_=f"name on-{swatch(band.category).tone}")


def _peak(series: MemorySeries, peak: Peak | None, scale: Scale) -> Markup:
    at = peak_index(series)
    share = (scale.share(at) + scale.share(at + 1)) / 2
    highest = totals(series)[at]
    x, y = percent(share), scale.y(highest)
    mark = element("circle", element("title", "peak"), cx=x, cy=y, r=5, class_="peak-mark", data_bytes=highest)
    leader = element("line", x1=x, x2=x, y1=TOP - 12, y2=y - 5, class_="leader")
    words = _peak_words(series, peak, at, share)
    return element("g", leader, _device_mark(peak, share, scale), mark, words, class_="peak")


def _device_mark(peak: Peak | None, share: float, scale: Scale) -> Markup | None:
    if peak is None or peak.device_bytes <= peak.allocated_bytes:
        return None
    y = scale.y(peak.device_bytes)
    anchor, dx = ("start", 14) if share < 0.3 or 0.5 <= share < 0.85 else ("end", -14)
    return element("svg", element("line", x1="-9", x2="9", y1="0", y2="0", class_="device-mark"),
                   element("text", f"device {format_bytes(peak.device_bytes)}", x=dx, y=4, text_anchor=anchor,
                           class_="device-name wide"), x=percent(share), y=y, class_="open")


def _peak_words(series: MemorySeries, peak: Peak | None, at: int, share: float) -> Markup:
    allocated = peak.allocated_bytes if peak else totals(series)[at]
    lines = [f"peak {format_bytes(allocated)}, {peak.phase if peak else series.phases[at]}"]
    lines += [peak.event, peak.layer] if peak else [f"event {series.event_index[at]}"]
    anchor, x = ("start", share) if share < 0.3 else ("end", share) if share > 0.7 else ("middle", share)
    return join((_lines(lines, percent(x), anchor, "peak-words wide"),
                 _lines(lines, "0", "start", "peak-words narrow")))


def _lines(lines: Sequence[str], x: str, anchor: str, css_class: str) -> Markup:
    most = 38 if "narrow" in css_class else 56
    rows = (element("text", shortened(line, most), x=x, y=12 + 16 * row, text_anchor=anchor,
                    class_=None if row else "first") for row, line in enumerate(lines))
    return element("g", *rows, class_=css_class)
