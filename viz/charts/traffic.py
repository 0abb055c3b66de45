"""Traffic of one rank in one step by collective and axis, inside a node (NVLink or PCIe) and over the network."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.results.report import RankReport, Report, TrafficRow
from simcore.units import format_bytes, format_seconds
from viz.charts.bars import Bar, Segment, bars
from viz.charts.legend import LegendEntry
from viz.markup import Markup

__all__ = ["link_entries", "traffic_bars"]

_LINKS = (("nvlink", "inside a node"), ("network", "over the network"), ("host", "to and from the host"))


def traffic_bars(report: Report, rank: RankReport, identity: str) -> Markup | None:
    """Draws the bytes that a rank of one class sends in one step as bars, one a collective and axis, most first.

    Parts of a bar: inside a node, over the network, copied to and from the host. None without traffic. `identity`:
    begin of the ids in it, unique on the page.
    """
    sums: dict[tuple[str, str, int], list[int]] = {}
    for row in rank.traffic:
        totals = sums.setdefault((row.collective, row.axis, row.group_size), [0, 0, 0, 0])
        for place, more in enumerate((row.nvlink_bytes, row.network_bytes, _copied(row), row.calls)):
            totals[place] += more
    if not sums:
        return None
    most = max(sum(sizes[:3]) for sizes in sums.values()) or 1
    order = sorted(sums.items(), key=lambda item: (-sum(item[1][:3]), item[0]))
    rows = [_bar(report, *key, sizes, most) for key, sizes in order]
    return bars(rows, f"What leaves a rank of {', '.join(rank.ranks)} in one step", identity)


def _copied(row: TrafficRow) -> int:
    """Bytes that go over neither kind of link between ranks: copies."""
    return row.wire_bytes if row.collective == "copy" else 0


def _bar(report: Report, collective: str, axis: str, size: int, sizes: Sequence[int], most: int) -> Bar:
    label = f"{collective} \u00b7 {axis} \u00b7 {size:,} ranks \u00b7 {sizes[3]:,} calls"
    segments = tuple(Segment(sizes[n] / most, f"{label}: {format_bytes(sizes[n])} {words}", *_paint(link))
                     for n, (link, words) in enumerate(_LINKS) if n < 2 or sizes[n])
    total = format_bytes(sum(sizes[:3]))
    return Bar(label, f"{total}{_waited(report, collective, axis)}", segments, (f"{collective} \u00b7 {axis}", total))


def _paint(link: str) -> tuple[str | None, str | None]:
    return {"nvlink": ("fill-sky", None), "network": (None, "url(#apricot-bars)")}.get(link, ("fill-plum", None))


def _waited(report: Report, collective: str, axis: str) -> str:
    if report.time is None:
        return ""
    rows = [row for row in report.time.communication if (row.collective, row.axis) == (collective, axis)]
    return f", {format_seconds(rows[0].exposed_s)} exposed" if rows else ""


def link_entries(rank: RankReport) -> list[LegendEntry]:
    """Returns legend entries of the kinds of links: inside a node, over the network; the host's if it is used."""
    used = _LINKS if any(map(_copied, rank.traffic)) else _LINKS[:2]
    return [LegendEntry(words, *_paint(link)) for link, words in used]
