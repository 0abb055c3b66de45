"""The peak opened up: who is there, by owner, the largest first."""

from __future__ import annotations

from typing import Final

from simcore.results.detail import ClassDetail, Holder
from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.charts.bars import Bar, Segment, bars, of_category
from viz.markup import Markup, element
from viz.pages.tables import code, table
from viz.palette import swatch

__all__ = ["all_holders", "holder_bars"]

_SHOWN: Final = 16
_MOST: Final = 400


def holder_bars(rank: RankReport, detail: ClassDetail, identity: str) -> Markup | None:
    """The largest owners as bars; what lies outside the allocator is one of them."""
    if rank.peak is None or not detail.holders:
        return None
    whole, largest = rank.peak.device_bytes, detail.holders[0].bytes
    rows = [_bar(one, largest, whole) for one in detail.holders[:_SHOWN]]
    rest = detail.holders[_SHOWN:]
    if rest:
        rows.append(_sum(f"{len(rest):,} more owners", sum(one.bytes for one in rest), largest, whole, "besides"))
    beside = whole - rank.peak.allocated_bytes
    if beside > 0:
        rows.append(_sum("beside what is allocated: context, NCCL, blocks that do not fit together", beside, largest,
                         whole, swatch("context").css_class, swatch("context").fill))
    return bars(rows, f"Who is there at the peak of ranks {', '.join(rank.ranks)}", identity)


def _bar(one: Holder, largest: int, whole: int) -> Bar:
    times = f", {one.num_layers}\u00d7" if one.num_layers > 1 else ""
    held = f"{one.owner} \u00b7 {one.layers}{times} \u00b7 {one.category}"
    value = f"{format_bytes(one.bytes)}  {one.bytes / whole:.1%}"
    return Bar(held, value, (of_category(one.bytes / largest, one.category, f"{held}: {value}"),),
               (held, format_bytes(one.bytes)))


def _sum(words: str, num_bytes: int, largest: int, whole: int, css_class: str | None, fill: str | None = None) -> Bar:
    """More than the scale holds ends at its edge."""
    value = f"{format_bytes(num_bytes)}  {num_bytes / whole:.1%}"
    return Bar(words, value, (Segment(min(1.0, num_bytes / largest), words, css_class, fill),),
               (words, format_bytes(num_bytes)))


def all_holders(detail: ClassDetail) -> Markup | None:
    """All of them as a table that opens."""
    if not detail.holders:
        return None
    rows = [[code(one.owner), one.layers, one.category, f"{one.num_layers:,}", format_bytes(one.bytes)]
            for one in detail.holders[:_MOST]]
    shown = table("Owners at the peak", ("tensor", "in layers", "category", "layers", "bytes"), rows, 3)
    return element("details", element("summary", f"All {len(detail.holders):,} owners at the peak"), shown,
                   class_="more")
