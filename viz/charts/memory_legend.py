"""Legends of the memory chart: its categories from top to bottom, and the phases of the strip below it."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.charts.axes import phase_class
from viz.charts.legend import LegendEntry, entry_of
from viz.charts.stack import layer_order
from viz.markup import Markup, element
from viz.palette import swatch

__all__ = ["category_entries", "category_sample", "memory_legend", "phase_legend"]


def memory_legend(rank: RankReport) -> Markup | None:
    """Returns an HTML legend of a memory chart: categories from top to bottom, with bytes at the peak.

    None without a peak or without memory over the step.
    """
    if rank.memory is None or rank.peak is None:
        return None
    order, sizes = layer_order(rank), rank.peak.by_category
    groups = (("Comes and goes", False), ("Held all step", True))
    parts = [_legend_group(title, [n for n in order if swatch(n).held is held], sizes) for title, held in groups]
    heading = element("p", "At the peak, in the order of the layers from top to bottom", class_="legend-head")
    return element("div", heading, *parts, class_="legend")


def category_entries(rank: RankReport) -> list[LegendEntry]:
    """Returns legend entries of the categories that have bytes at the peak, from top to bottom, with these bytes."""
    sizes = rank.peak.by_category if rank.peak else {}
    return [entry_of(name, format_bytes(sizes[name])) for name in layer_order(rank) if sizes.get(name)]


def _legend_group(title: str, names: Sequence[str], sizes: dict[str, int]) -> Markup | None:
    if not names:
        return None
    rows = (_legend_row(name, sizes.get(name, 0)) for name in names)
    total = format_bytes(sum(sizes.get(name, 0) for name in names))
    heading = element("h4", element("span", title), element("span", total, class_="bytes"))
    return element("div", heading, element("ul", *rows))


def _legend_row(name: str, num_bytes: int) -> Markup:
    shown = format_bytes(num_bytes) if num_bytes else "none"
    return element("li", category_sample(name), element("span", name, class_="label"),
                   element("span", shown, class_="bytes"), class_=None if num_bytes else "absent")


def category_sample(category: str) -> Markup:
    """Returns a small square as `<svg>`, in the colour and texture of a category."""
    paint = swatch(category)
    shape = element("rect", x="0.5", y="0.5", width=15, height=15, rx=3, fill=paint.fill,
                    class_=" ".join(filter(None, ("sample", paint.css_class))))
    return element("svg", shape, width=16, height=16, aria_hidden="true")


def phase_legend(rank: RankReport) -> Markup | None:
    """Returns an HTML legend of a memory chart's phases, each with its highest allocated bytes.

    None without a peak or without memory over the step.
    """
    if rank.memory is None or rank.peak is None:
        return None
    names = dict.fromkeys(rank.memory.phases)
    return element("ul", *(_phase_row(name, rank.peak.by_phase.get(name)) for name in names), class_="phase-key",
                   aria_label="Phases and the highest allocated bytes in each")


def _phase_row(name: str, highest: int | None) -> Markup:
    shape = element("rect", x="0.5", y="0.5", width=15, height=15, class_=f"strip {phase_class(name)}")
    sample = element("svg", shape, width=16, height=16, aria_hidden="true")
    most = None if highest is None else element("span", f"up to {format_bytes(highest)}", class_="bytes")
    return element("li", sample, element("span", name, class_="label"), most)
