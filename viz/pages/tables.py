"""What stands beside and under a chart: the legend, the key of the phases, and the numbers as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.charts.axes import phase_class
from viz.charts.legend import Look, look_of
from viz.charts.stack import layer_order
from viz.markup import Child, Markup, element, join
from viz.palette import swatch

__all__ = ["at_rest_table", "category_looks", "category_table", "code", "legend", "owner_table", "phase_key", "table",
           "traffic_table"]

_BREAKS: Final = re.compile(r"(?<=[.:/])")


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Child]], first_number: int) -> Markup:
    """A table with a caption that scrolls by itself when it is too wide; columns from `first_number` on are numbers."""
    def kind(column: int) -> str | None:
        return "number" if column >= first_number else None

    heads = (element("th", name, scope="col", class_=kind(i)) for i, name in enumerate(columns))
    body = (element("tr", *(element("td", cell, class_=kind(i)) for i, cell in enumerate(row))) for row in rows)
    whole = element("table", element("caption", caption), element("thead", element("tr", *heads)),
                    element("tbody", *body))
    return element("div", whole, class_="scroll", role="region", tabindex=0, aria_label=caption)


def legend(rank: RankReport) -> Markup | None:
    """The layers of the chart from top to bottom, with their bytes at the peak."""
    if rank.memory is None or rank.peak is None:
        return None
    order, sizes = layer_order(rank), rank.peak.by_category
    groups = (("Comes and goes", False), ("Held all step", True))
    parts = [_legend_group(title, [n for n in order if swatch(n).held is held], sizes) for title, held in groups]
    heading = element("p", "At the peak, in the order of the layers from top to bottom", class_="legend-head")
    return element("div", heading, *parts, class_="legend")


def category_looks(rank: RankReport) -> list[Look]:
    """The looks of the layers, from the top of the stack to its floor, with their bytes at the peak."""
    sizes = rank.peak.by_category if rank.peak else {}
    return [look_of(name, format_bytes(sizes[name])) for name in layer_order(rank) if sizes.get(name)]


def _legend_group(title: str, names: Sequence[str], sizes: dict[str, int]) -> Markup | None:
    if not names:
        return None
    rows = (_legend_row(name, sizes.get(name, 0)) for name in names)
    total = format_bytes(sum(sizes.get(name, 0) for name in names))
    heading = element("h4", element("span", title), element("span", total, class_="bytes"))
    return element("div", heading, element("ul", *rows))


def _legend_row(name: str, num_bytes: int) -> Markup:
    shown = format_bytes(num_bytes) if num_bytes else "none"
    return element("li", _sample(name), element("span", name, class_="label"),
                   element("span", shown, class_="bytes"), class_=None if num_bytes else "absent")


def _sample(category: str) -> Markup:
    drawn = swatch(category)
    shape = element("rect", x="0.5", y="0.5", width=15, height=15, rx=3, fill=drawn.fill,
                    class_=" ".join(filter(None, ("sample", drawn.css_class))))
    return element("svg", shape, width=16, height=16, aria_hidden="true")


def phase_key(rank: RankReport) -> Markup | None:
    """The phases of the strip under the chart, with the highest bytes of each."""
    if rank.memory is None or rank.peak is None:
        return None
    names = dict.fromkeys(rank.memory.phases)
    return element("ul", *(_phase_row(name, rank.peak.by_phase.get(name)) for name in names), class_="phase-key",
                   aria_label="Phases and the highest allocated bytes in each")


def _phase_row(name: str, highest: int | None) -> Markup:
    shape = element("rect", x="0.5", y="0.5", width=15, height=15, class_=f"strip {phase_class(name)}")
    drawn = element("svg", shape, width=16, height=16, aria_hidden="true")
    most = None if highest is None else element("span", f"up to {format_bytes(highest)}", class_="bytes")
    return element("li", drawn, element("span", name, class_="label"), most)


def code(text: str) -> Markup:
    """A name as code, which may break after the signs that join its parts."""
    return element("code", join(_BREAKS.split(text), Markup("<wbr/>")))


def category_table(rank: RankReport) -> Markup | None:
    """Bytes by category at the peak, largest first, with their share."""
    if rank.peak is None or not rank.peak.by_category:
        return None
    sizes = sorted(((name, size) for name, size in rank.peak.by_category.items() if size),
                   key=lambda item: (-item[1], item[0]))
    whole = sum(rank.peak.by_category.values()) or 1
    rows = [[join((_sample(name), " ", name)), format_bytes(size), f"{size / whole:.1%}"] for name, size in sizes]
    return table("By category at the peak", ("category", "bytes", "% of allocated"), rows, 1)


def owner_table(rank: RankReport) -> Markup | None:
    """The largest holders of bytes at the peak."""
    if rank.peak is None or not rank.peak.top:
        return None
    rows = [[code(o.owner), o.category, format_bytes(o.bytes)] for o in rank.peak.top]
    return table("Largest owners at the peak", ("layer / tensor", "category", "bytes"), rows, 2)


def traffic_table(rank: RankReport) -> Markup | None:
    """The collectives of one step."""
    rows = [[t.collective, code(t.axis), t.phase, t.dtype, t.algorithm, f"{t.group_size:,}", f"{t.calls:,}",
             *map(format_bytes, (t.payload_bytes, t.wire_bytes, t.network_bytes)), t.timing] for t in rank.traffic]
    columns = ("collective", "axis", "phase", "dtype", "algorithm", "ranks", "calls", "payload", "on the wire",
               "of it off the node", "time")
    return table("Traffic of one step and rank", columns, rows, 5) if rows else None


def at_rest_table(rank: RankReport) -> Markup | None:
    """What lives across layers just before the optimizer's step, by component."""
    rows = [[name, f"{c.num_params:,}", f"{c.num_trainable_params:,}", *map(format_bytes, (
        c.params_bytes, c.grads_bytes, c.optimizer_bytes))] for name, c in rank.at_rest.items()]
    columns = ("component", "parameters", "trainable", "weights", "gradients", "optimizer")
    caption = "At rest, just before the optimizer\u2019s step" + (" (apportioned)" if rank.apportioned else "")
    return table(caption, columns, rows, 1) if rows else None
