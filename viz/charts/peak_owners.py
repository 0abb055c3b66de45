"""Memory at the peak by owner (layer and tensor), the largest first, as bars."""

from __future__ import annotations

from typing import Final

from simcore.results.detail import ClassDetail, Holder
from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.charts.bars import Bar, Segment, bars, category_segment
from viz.markup import Markup
from viz.palette import swatch

__all__ = ["peak_owner_bars"]

_SHOWN: Final = 16
"""Number of owners with a bar of their own; the others share one bar."""


def peak_owner_bars(rank: RankReport, detail: ClassDetail, identity: str) -> Markup | None:
    """Draws the 16 largest owners (layer and tensor) of memory at the peak as bars.

    Then one bar for all other owners, and one for memory outside the allocator. None without a peak or without owners.
    `identity`: begin of the ids in it, unique on the page.
    """
    if rank.peak is None or not detail.holders:
        return None
    device_bytes, largest = rank.peak.device_bytes, detail.holders[0].bytes
    rows = [_bar(holder, largest, device_bytes) for holder in detail.holders[:_SHOWN]]
    rest = detail.holders[_SHOWN:]
    if rest:
        rows.append(_sum(f"{len(rest):,} more owners", sum(holder.bytes for holder in rest), largest, device_bytes,
                         "besides"))
    outside = device_bytes - rank.peak.allocated_bytes
    if outside > 0:
        rows.append(_sum("beside what is allocated: context, NCCL, blocks that do not fit together", outside, largest,
                         device_bytes, swatch("context").css_class, swatch("context").fill))
    return bars(rows, f"Who is there at the peak of ranks {', '.join(rank.ranks)}", identity)


def _bar(holder: Holder, largest: int, device_bytes: int) -> Bar:
    times = f", {holder.num_layers}\u00d7" if holder.num_layers > 1 else ""
    label = f"{holder.owner} \u00b7 {holder.layers}{times} \u00b7 {holder.category}"
    value = f"{format_bytes(holder.bytes)}  {holder.bytes / device_bytes:.1%}"
    return Bar(label, value, (category_segment(holder.bytes / largest, holder.category, f"{label}: {value}"),),
               (label, format_bytes(holder.bytes)))


def _sum(words: str, num_bytes: int, largest: int, device_bytes: int, css_class: str | None, fill: str | None = None
         ) -> Bar:
    """Returns the bar of a sum, cut off at the edge of the scale where the sum is larger than the largest owner."""
    value = f"{format_bytes(num_bytes)}  {num_bytes / device_bytes:.1%}"
    return Bar(words, value, (Segment(min(1.0, num_bytes / largest), words, css_class, fill),),
               (words, format_bytes(num_bytes)))
