"""Section of scenarios side by side: keys that differ, numbers with their differences, charts at one scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simcore.results.compare import (
    Comparison,
    Kept,
    RateRow,
    Row,
    Unit,
    compare,
    format_value,
    part_rows,
    phase_rows,
    room_rows,
    traffic_rows,
)
from simcore.results.evidence import COUNTED
from simcore.results.report import RankReport, Report
from simcore.units import format_bytes, format_seconds
from viz.charts.legend import legend
from viz.charts.memory import memory_chart
from viz.charts.memory_legend import category_entries
from viz.charts.rank_class import class_letter, fullest_class
from viz.markup import Child, Markup, element
from viz.pages.scenario_keys import differing_keys
from viz.pages.tables import table
from viz.pages.timeline import timeline
from viz.pages.verdict import device_fill, verdict

__all__ = ["comparison", "evidence_table", "kept_table", "marks", "number_tables"]

_SAME: Final = 0.5
"""Difference in percent below which two numbers are shown as the same."""
_FACTOR: Final = 400
"""Difference in percent above which a factor is shown instead."""
_BAR: Final = 8
"""Height of one result's bar in pixels, with the gap below it."""

_RESERVED: Final = (
    "Reserved is what torch's allocator holds, with cache that it gives back before it fails: above needed by that "
    "cache, below it where more lies outside the allocator.")
"""Why the two rows of a device differ in either direction."""
_GAINED: Final = ("left", "capacity", "tokens/s per GPU", "MFU", "model TFLOP/s per GPU", "tokens in the cache",
                  "full-length sequences", "decoded tokens/s")
"""Quantities of which more is better; of all others less is."""


def marks(number: int) -> tuple[str, ...]:
    """Returns the letters of `number` results: A, B, ..."""
    return tuple(class_letter(place) for place in range(number))


def comparison(a: Report, b: Report, *more: Report, kept: Sequence[Kept] = ()) -> Markup:
    """Returns the page's section about two or more scenarios: keys that differ, numbers with differences, charts.

    Memory and streams are drawn only if all reports have them; memory is of the fullest class of each. `kept`: settings
    that some keep although all were to have those of one.
    """
    reports = (a, b, *more)
    both = compare(*reports, kept=kept)
    equal = element("p", "No difference: all numbers and settings are equal.", class_="note")
    heads = (_head(*pair) for pair in zip(marks(len(reports)), reports, both.num_gpus, strict=True))
    many = " many" if more else ""
    return element("section", element("h2", "Side by side"), element("div", *heads, class_=f"side{many}"),
                   evidence_table(both), _scenario_keys(reports), _defaults(both), kept_table(both),
                   equal if both.is_equal else None,
                   element("div", *number_tables(both), class_=f"side numbers{many}"),
                   _memory(reports, many), _streams(reports, many), class_="versus",
                   aria_label="Scenarios side by side")


def _head(mark: str, report: Report, num_gpus: int) -> Markup:
    """Returns letter, name, verdict, number of GPUs and fill of one scenario."""
    gpus = element("span", f" {num_gpus:,} GPU{'' if num_gpus == 1 else 's'}", class_="note") if num_gpus else None
    return element("div", element("h3", element("span", mark, class_="badge side-mark"), " ", report.name, dir="auto"),
                   element("p", verdict(report), gpus), device_fill(report), element("p", ", ".join(_decides(report))))


def _decides(report: Report) -> Iterator[str]:
    """Yields what decides between scenarios: memory of the fullest rank, step, throughput, cost."""
    if report.highest_bytes is not None:
        yield f"{format_bytes(report.highest_bytes)} on the fullest rank"
    if report.time is not None:
        yield f"step {format_seconds(report.time.step_s)}"
        yield f"{report.time.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"
        if report.time.cost and report.time.cost.per_million_tokens is not None:
            yield f"{report.time.cost.per_million_tokens:#,.3g} USD per M tokens"


def number_tables(both: Comparison) -> Iterator[Markup]:
    """Yields HTML tables of the numbers of all results, with differences to the first (A).

    In this order: device, peak, time, its parts, rates and cost, memory at rest, traffic; memory and traffic are of the
    worst rank of each. A row that is zero in all, and a table without such rows, is left out.
    """
    peak = [row for row in both.peak if row.what not in ("reserved", "device")]
    groups: Sequence[tuple[str, Sequence[Row], Unit]] = (
        ("Device, worst rank", room_rows(both), "bytes"), ("Peak on the worst rank", peak, "bytes"),
        ("Time", phase_rows(both), "seconds"),
        ("The step, by what the GPU does", part_rows(both), "seconds"),
        ("Rates and cost", both.rates, "number"), ("At rest on the worst rank", both.at_rest, "bytes"),
        ("Leaves the worst rank in one step", traffic_rows(both), "bytes"))
    for name, rows, unit in groups:
        if shown := [row for row in rows if any(row.values)]:
            yield _table(name, shown, unit, marks(len(both.names)))
            if any(row.what.startswith("reserved") for row in shown):
                yield element("p", _RESERVED, class_="note")


def evidence_table(both: Comparison) -> Markup | None:
    """Returns a table of what is known about each layout; None if nothing is told of any."""
    if not any(both.evidence):
        return None
    rows = [[mark, COUNTED[kind] if kind else "\u2013"]
            for mark, kind in zip(marks(len(both.names)), both.evidence, strict=True)]
    return table("Evidence", ("", "known runs of the layout"), rows, 2)


def kept_table(both: Comparison) -> Markup | None:
    """Returns a table of settings that a result keeps although another's were asked for, with the refusals."""
    letters = marks(len(both.names))
    rows = [[letters[one.place], element("code", one.key), one.value, one.wanted, one.reason] for one in both.kept]
    return table("Kept, though asked to be alike", ("", "key", "keeps", "asked", "why"), rows, 5) if rows else None


def _scenario_keys(reports: Sequence[Report]) -> Markup:
    """Returns a table of the keys in which the scenarios differ."""
    values = differing_keys(reports)
    if not values:
        return element("p", "All ask the same; they differ in name alone.", class_="note")
    rows = [[element("code", key), *texts] for key, texts in values.items()]
    return table("Asked differently", ("key", *marks(len(reports))), rows, len(reports) + 1)


def _defaults(both: Comparison) -> Markup | None:
    """Returns a table of settings that differ because a framework chose them; chosen values are marked."""
    rows = [[element("code", row.key), *(_chosen(*pair) for pair in zip(row.values, row.by_default, strict=True))]
            for row in both.defaults]
    heads = ("key", *marks(len(both.names)))
    return table("Differ by default (* chosen by the framework)", heads, rows, len(heads)) if rows else None


def _chosen(value: str, by_default: bool) -> str:  # noqa: FBT001  unpacked from a pair
    return f"{value or chr(0x2013)}{' *' if by_default else ''}"


def _table(name: str, rows: Sequence[Row], unit: Unit, letters: Sequence[str]) -> Markup:
    most = max(abs(value) for row in rows for value in row.values)
    difference = ("difference",) * (len(letters) == 2)
    return table(name, ("", *letters, *difference, ", ".join(letters)), [_row(row, unit, most) for row in rows], 1)


def _row(row: Row, unit: Unit, most: float) -> list[Child]:
    if isinstance(row, RateRow):  # rows of different units have no common scale
        unit, most = row.unit, max(map(abs, row.values))
    first, *others = (format_value(value, unit).replace("-", "\u2013" if not value else "\u2212")
                      for value in row.values)
    if not row.more:
        return [_label(row), first, *others, _difference(row, unit), _bars(row, most)]
    beside = (element("span", cell, " ", _share(row, place)) for place, cell in enumerate(others, 1))
    return [_label(row), first, *beside, _bars(row, most)]


def _label(row: Row) -> Child:
    return element("span", row.what.strip(), class_="below") if row.what.startswith(" ") else row.what


def _css(row: Row, *, grows: bool) -> str:
    """Returns the class of a difference: in red what costs more, or of what is gained less."""
    return "less-of" if grows == (row.what in _GAINED) else "more-of"


def _difference(row: Row, unit: Unit) -> Markup:
    """Returns an arrow, the difference, and its share of the value of A."""
    if row.percent is None:
        exact = element("span", f"{format_value(row.difference, unit)} ", class_="exact")
        return element("span", "\u25b2 ", exact, "new", class_=_css(row, grows=True))
    if abs(row.percent) < _SAME:
        return element("span", "= same" if not row.difference else "\u2248 same", class_="same")
    sign, css = "\u25b2" if row.difference > 0 else "\u25bc", _css(row, grows=row.difference > 0)
    exact = element("span", f"{format_value(abs(row.difference), unit)} ", class_="exact")
    return element("span", f"{sign} ", exact, f"({_percent(row, 1)})", class_=css)


def _share(row: Row, place: int) -> Markup:
    """Returns the difference to A as a share of it; empty where one of them lacks the quantity."""
    percent = row.percent_of(place)
    if percent is None or not row.values[place]:
        return element("span", "", class_="share")
    css = "same" if abs(percent) < _SAME else _css(row, grows=row.values[place] > row.a)
    return element("span", "=" if css == "same" else _percent(row, place), class_=f"share {css}")


def _percent(row: Row, place: int) -> str:
    percent = row.percent_of(place) or 0.0
    text = f"{percent:+.0f}%" if percent < _FACTOR else f"\u00d7{row.values[place] / row.a:,.0f}"
    return text.replace("-", "\u2212")


def _bars(row: Row, most: float) -> Markup:
    bars = (element("rect", x="0", y=1 + _BAR * place, height=_BAR - 2, rx=1, class_="bar-b" if place else "bar-a",
                    width=f"{100 * max(value, 0) / most:.1f}%") for place, value in enumerate(row.values))
    return element("svg", *bars, width=64, height=_BAR * len(row.values), aria_hidden="true", class_="pair-bars")


def _memory(reports: Sequence[Report], many: str) -> Markup | None:
    """Draws the memory of all fullest classes of ranks, at one scale of bytes."""
    ranks = [(report, fullest_class(report)) for report in reports]
    most = max((rank.peak.device_bytes for _, rank in ranks if rank and rank.peak), default=0)
    figures = list(_memory_figures(ranks, most))
    return element("div", *figures, class_=f"side{many} figures") if len(figures) == len(ranks) else None


def _memory_figures(ranks: Sequence[tuple[Report, RankReport | None]], most: int) -> Iterator[Markup]:
    for mark, (report, rank) in zip(marks(len(ranks)), ranks, strict=True):
        if rank is not None and rank.memory is not None and rank.memory.event_index:
            chart = memory_chart(rank, report.capacity_bytes, "issue", f"versus-{mark}", at_least=most,
                          kinds=report.detail.layers if report.detail else {})
            caption = element("figcaption", f"{mark}: memory of ranks {', '.join(rank.ranks)} over the step")
            yield element("figure", caption, element("div", chart, class_="plot"),
                          legend(category_entries(rank), "Categories at the peak"))


def _streams(reports: Sequence[Report], many: str) -> Markup | None:
    ends = [r.detail.end_s for r in reports if r.detail and r.detail.end_s]
    timelines = [timeline(r, f"versus-{mark}-lanes", f"{mark}: streams", max(ends))
                 for mark, r in zip(marks(len(reports)), reports, strict=True) if ends]
    return element("div", *timelines, class_=f"side{many} figures") if timelines and all(timelines) else None
