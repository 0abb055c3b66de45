"""Tables of a class of ranks, and the text of their cells: names as code, bytes with a dash or a minus sign."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.charts.memory_legend import category_sample
from viz.markup import Child, Markup, element, join

__all__ = [
    "at_rest_table",
    "bytes_or_dash",
    "category_table",
    "code",
    "owner_table",
    "signed_bytes",
    "table",
    "traffic_table",
]

_BREAKS: Final = re.compile(r"(?<=[.:/])")


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Child]], first_number: int) -> Markup:
    """Returns an HTML table with a caption; it scrolls where it is too wide.

    `first_number`: index of the column from which on cells are numbers, which are right-aligned.
    """
    def kind(column: int) -> str | None:
        return "number" if column >= first_number else None

    heads = (element("th", name, scope="col", class_=kind(i)) if name else element("td")
             for i, name in enumerate(columns))
    body = (element("tr", *(element("td", cell, class_=kind(i)) for i, cell in enumerate(row))) for row in rows)
    content = element("table", element("caption", caption), element("thead", element("tr", *heads)),
                    element("tbody", *body))
    return element("div", content, class_="scroll", role="region", tabindex=0, aria_label=caption)


def bytes_or_dash(num_bytes: int | None) -> str:
    """Returns a number of bytes as text with its unit, such as "1.50 GiB"; a dash for None."""
    return "\u2013" if num_bytes is None else format_bytes(num_bytes)


def signed_bytes(num_bytes: int | None) -> str:
    """Returns bytes as text with a true minus sign, so that a deficit is noticed; a dash for None."""
    return bytes_or_dash(num_bytes).replace("-", "\u2212") if num_bytes is not None else "\u2013"


def code(text: str) -> Markup:
    """Returns a name as an HTML `<code>` element; lines may break after dots, colons and slashes in it."""
    return element("code", join(_BREAKS.split(text), Markup("<wbr/>")))


def category_table(rank: RankReport) -> Markup | None:
    """Returns an HTML table of bytes by category at the peak with their shares of the allocated bytes, largest first.

    None without a peak or categories in it.
    """
    if rank.peak is None or not rank.peak.by_category:
        return None
    sizes = sorted(((name, size) for name, size in rank.peak.by_category.items() if size),
                   key=lambda item: (-item[1], item[0]))
    allocated = sum(rank.peak.by_category.values()) or 1
    rows = [[join((category_sample(name), " ", name)), format_bytes(size), f"{size / allocated:.1%}"]
            for name, size in sizes]
    return table("By category at the peak", ("category", "bytes", "% of allocated"), rows, 1)


def owner_table(rank: RankReport) -> Markup | None:
    """Returns an HTML table of the report's largest owners (layer and tensor) at the peak; None without any."""
    if rank.peak is None or not rank.peak.top:
        return None
    rows = [[code(o.owner), o.category, format_bytes(o.bytes)] for o in rank.peak.top]
    return table("Largest owners at the peak", ("layer / tensor", "category", "bytes"), rows, 2)


def traffic_table(rank: RankReport) -> Markup | None:
    """Returns an HTML table of the collectives of one step on one rank, a row of the report each; None without any."""
    rows = [[t.collective, code(t.axis), t.phase, t.dtype, t.algorithm, f"{t.group_size:,}", f"{t.calls:,}",
             *map(format_bytes, (t.payload_bytes, t.wire_bytes, t.network_bytes)), t.timing] for t in rank.traffic]
    columns = ("collective", "axis", "phase", "dtype", "algorithm", "ranks", "calls", "payload", "on the wire",
               "of it off the node", "time")
    return table("Traffic of one step and rank", columns, rows, 5) if rows else None


def at_rest_table(rank: RankReport) -> Markup | None:
    """Returns an HTML table of memory at rest on one rank by component, just before the optimizer's step.

    None without components.
    """
    rows = [[name, f"{c.num_params:,}", f"{c.num_trainable_params:,}", *map(format_bytes, (
        c.params_bytes, c.grads_bytes, c.optimizer_bytes))] for name, c in rank.at_rest.items()]
    columns = ("component", "parameters", "trainable", "weights", "gradients", "optimizer")
    caption = "At rest, just before the optimizer\u2019s step" + (" (apportioned)" if rank.apportioned else "")
    return table(caption, columns, rows, 1) if rows else None
