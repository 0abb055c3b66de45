"""Memory of each class of ranks at its peak, as bars on one scale with the end of the device and the measured band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcore.results.report import Peak, RankReport, Report
from simcore.units import format_bytes
from viz.charts.bars import shortened
from viz.charts.rank_class import class_letter
from viz.charts.scale import percent
from viz.markup import Markup, element
from viz.palette import swatch

__all__ = ["Mark", "class_bars", "drawn_categories"]

_MOST_CLASSES: Final = 12


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured size: its name, and bytes."""

    words: str
    num_bytes: float


_ROW, _BAR, _HEAD, _FOOT = 52, 18, 4, 22
_THIN: Final = 0.001


def class_bars(report: Report, identity: str, marks: Sequence[Mark] = ()) -> Markup | None:
    """Draws a bar for each class of ranks: categories at its peak, memory outside the allocator, fragmentation.

    A bracket is the band of measured runs, a line on each bar the end of the device. The fullest 12 classes are
    drawn. None without peaks. `identity`: begin of the ids in it, unique on the page. `marks`: measured sizes.
    """
    shown = _fullest(report)
    if not shown:
        return None
    top = max(_top(report, shown), *(1.04 * mark.num_bytes for mark in marks), 1)
    rows = [_row(report, number, rank, rank.peak, top, _HEAD + place * _ROW)
            for place, (number, rank) in enumerate(shown) if rank.peak]
    height = _HEAD + _ROW * len(rows) + _FOOT
    words = "; ".join(f"class {class_letter(number)}: {format_bytes(rank.peak.device_bytes)}"
                      for number, rank in shown if rank.peak)
    return element(
        "svg", element("title", "Memory of each class of ranks at its peak", id=f"{identity}-title"),
        element("desc", words, id=f"{identity}-desc"), *rows, _end(report, top, height),
        *(_mark(mark, top, height) for mark in marks), class_="chart class-bars", role="img", width="100%",
        height=height, aria_labelledby=f"{identity}-title", aria_describedby=f"{identity}-desc")


def _mark(mark: Mark, top: float, height: int) -> Markup:
    at = percent(mark.num_bytes / top)
    words = f"measured: {mark.words} {format_bytes(mark.num_bytes)}"
    lines = (element("line", x1=at, x2=at, y1=y + 17, y2=y + 23 + _BAR) for y in range(_HEAD, height - _FOOT, _ROW))
    return element("g", element("title", words), *lines, class_="measured-mark")


def drawn_categories(report: Report) -> list[str]:
    """Returns the categories that the bars have, those with most bytes first."""
    sums: dict[str, int] = {}
    for _, rank in _fullest(report):
        for name, size in _parts(rank.peak) if rank.peak else ():
            sums[name] = max(sums.get(name, 0), size)
    return sorted(sums, key=lambda name: -sums[name])


def _fullest(report: Report) -> list[tuple[int, RankReport]]:
    """Classes with the highest peaks, each with its number, in the order of the result."""
    there = [(number, rank) for number, rank in enumerate(report.ranks) if rank.peak]
    by_size = sorted(there, key=lambda pair: -(pair[1].peak.device_bytes if pair[1].peak else 0))
    return sorted(by_size[:_MOST_CLASSES], key=lambda pair: pair[0])


def _top(report: Report, shown: list[tuple[int, RankReport]]) -> float:
    """Bytes at the right end: above the device's capacity and every band."""
    ends = [max(rank.peak.device_bytes, rank.peak.band_bytes[1]) for _, rank in shown if rank.peak]
    return 1.04 * max(*ends, report.capacity_bytes or 0, 1)


def _parts(peak: Peak) -> list[tuple[str, int]]:
    """Categories with bytes, from left to right: what is held all step, what comes and goes, what is outside."""
    inside = [(name, size) for name, size in peak.by_category.items() if size > 0]
    inside.sort(key=lambda pair: (not swatch(pair[0]).held, -pair[1]))
    return [*inside, *((name, size) for name, size in peak.outside.items() if size > 0)]


def _row(report: Report, number: int, rank: RankReport, peak: Peak, top: float, y: int) -> Markup:
    share = f" ({peak.device_bytes / report.capacity_bytes:.0%})" if report.capacity_bytes else ""
    count = f"{rank.num_ranks:,} rank{'' if rank.num_ranks == 1 else 's'}"
    stage = f" \u00b7 stage {rank.stage}" if rank.coordinates.get("pp") is not None else ""
    names = f"{class_letter(number)} \u00b7 {count} \u00b7 {shortened(', '.join(rank.ranks), 24)}{stage}"
    bar, at = [], 0.0
    for name, size in _parts(peak):
        paint = swatch(name)
        bar.append(element("rect", element("title", f"{name}: {format_bytes(size)}"), x=percent(at / top), y=y + 20,
                           width=percent(max(size / top, _THIN)), height=_BAR, fill=paint.fill,
                           class_=" ".join(filter(None, ("segment", paint.css_class)))))
        at += size
    rest = peak.device_bytes - at
    if rest > 0:
        bar.append(element("rect", element("title", f"fragmentation: {format_bytes(rest)}"), x=percent(at / top),
                           y=y + 20, width=percent(rest / top), height=_BAR, class_="segment room"))
    return element(
        "g", element("text", names, x="0", y=y + 14, class_="class-name"),
        element("text", f"{format_bytes(peak.device_bytes)}{share}", x="100%", y=y + 14, text_anchor="end",
                class_="value"),
        element("rect", x="0", y=y + 20, width="100%", height=_BAR, class_="track"), *bar, _band(peak, top, y),
        class_="class-row", data_class=number)


def _band(peak: Peak, top: float, y: int) -> Markup | None:
    """Draws the range of measured runs as a bracket below the bar; None where it has no width."""
    low, high = peak.band_bytes
    if low >= high:
        return None
    lines = ((low, high, y + 42, y + 42), (low, low, y + 39, y + 45), (high, high, y + 39, y + 45))
    title = element("title", f"measured runs of such layouts: {format_bytes(low)} to {format_bytes(high)}")
    return element("g", title, *(element("line", x1=percent(a / top), x2=percent(b / top), y1=c, y2=d)
                                 for a, b, c, d in lines), class_="band")


def _end(report: Report, top: float, height: int) -> Markup | None:
    if not report.capacity_bytes:
        return None
    at = percent(report.capacity_bytes / top)
    return element(
        "g", *(element("line", x1=at, x2=at, y1=y + 17, y2=y + 23 + _BAR, class_="end")
               for y in range(_HEAD, height - _FOOT, _ROW)),
        element("text", f"{format_bytes(report.capacity_bytes)} usable", x=at, y=height - 3,
                text_anchor="end" if report.capacity_bytes > top / 2 else "start", class_="capacity-name"))
