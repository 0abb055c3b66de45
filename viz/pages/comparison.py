"""Section of two scenarios side by side: keys that differ, numbers with their differences, charts at one scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from simcore.results.compare import Comparison, Row, compare
from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds
from viz.charts.legend import legend
from viz.charts.memory import memory_chart
from viz.charts.memory_legend import category_entries
from viz.charts.rank_class import fullest_class
from viz.markup import Child, Markup, element
from viz.pages.scenario_keys import differing_keys
from viz.pages.tables import table
from viz.pages.timeline import timeline
from viz.pages.verdict import device_fill, verdict

__all__ = ["comparison", "number_tables"]

_SAME: Final = 0.5
"""Difference in percent below which two numbers are shown as the same."""
_FACTOR: Final = 400
"""Difference in percent above which a factor is shown instead."""


def comparison(a: Report, b: Report) -> Markup:
    """Returns the page's section about two scenarios: keys that differ, numbers with differences, charts.

    Memory and streams are drawn only if both reports have them; memory is of the fullest class of each.
    """
    both = compare(a, b)
    heads = (element("div", element("h3", element("span", mark, class_="badge side-mark"), " ", r.name, dir="auto"),
                     element("p", verdict(r)), device_fill(r)) for mark, r in (("A", a), ("B", b)))
    return element("section", element("h2", "Side by side"), element("div", *heads, class_="side"),
                   _scenario_keys(a, b), element("div", *number_tables(both), class_="side numbers"),
                   _memory(a, b), _streams(a, b), class_="versus", aria_label="Two scenarios side by side")


def number_tables(both: Comparison) -> Iterator[Markup]:
    """Yields HTML tables of the numbers of two results, with differences (B less A, and as a share of A).

    In this order: peak, time, memory at rest, traffic; memory and traffic are of the worst rank of each. A row that is
    zero in both, and a table without rows, is left out.
    """
    groups: Sequence[tuple[str, tuple[Row, ...], Callable[[float], str]]] = (
        ("Peak on the worst rank", both.peak, format_bytes), ("Time", both.time, format_seconds),
        ("At rest on the worst rank", both.at_rest, format_bytes),
        ("Leaves the worst rank in one step", both.traffic, format_bytes))
    return (_table(name, rows, show) for name, rows, show in groups if rows)


def _scenario_keys(a: Report, b: Report) -> Markup:
    """Returns a table of the keys in which the scenarios differ."""
    values = differing_keys((a, b))
    if not values:
        return element("p", "Both ask the same; they differ in name alone.", class_="note")
    rows = [[element("code", key), value_a, value_b] for key, (value_a, value_b) in values.items()]
    return table("Asked differently", ("key", "A", "B"), rows, 9)


def _table(name: str, rows: Sequence[Row], show: Callable[[float], str]) -> Markup:
    most = max((abs(value) for row in rows for value in (row.a, row.b)), default=0) or 1
    return table(name, ("", "A", "B", "difference", "A, B"), [_row(row, show, most) for row in rows if
                                                                  row.a or row.b], 1)


def _row(row: Row, show: Callable[[float], str], most: float) -> list[Child]:
    return [row.what, show(row.a) if row.a else "\u2013", show(row.b) if row.b else "\u2013",
            _difference(row, show), _pair(row, most)]


def _difference(row: Row, show: Callable[[float], str]) -> Markup:
    """Returns an arrow, the difference, and its share of the value of A."""
    if row.percent is None:
        return element("span", "\u25b2 ", element("span", f"{show(row.difference)} ", class_="exact"), "new",
                       class_="more-of")
    if abs(row.percent) < _SAME:
        return element("span", "= same" if not row.difference else "\u2248 same", class_="same")
    sign, css = ("\u25b2", "more-of") if row.difference > 0 else ("\u25bc", "less-of")
    share = f"{row.percent:+.0f}%" if row.percent < _FACTOR else f"\u00d7{row.b / row.a:,.0f}"
    exact = element("span", f"{show(abs(row.difference))} ", class_="exact")
    return element("span", f"{sign} ", exact, f"({share})".replace("-", "\u2212"), class_=css)


def _pair(row: Row, most: float) -> Markup:
    pair = (element("rect", x="0", y=y, height=6, rx=1, width=f"{100 * value / most:.1f}%", class_=css)
             for value, y, css in ((row.a, 1, "bar-a"), (row.b, 9, "bar-b")))
    return element("svg", *pair, width=64, height=16, aria_hidden="true", class_="pair-bars")


def _memory(a: Report, b: Report) -> Markup | None:
    """Draws the memory of both fullest classes of ranks, at one scale of bytes."""
    ranks = [(report, fullest_class(report)) for report in (a, b)]
    most = max((rank.peak.device_bytes for _, rank in ranks if rank and rank.peak), default=0)
    figures = list(_memory_figures(ranks, most))
    return element("div", *figures, class_="side") if len(figures) == len(ranks) else None


def _memory_figures(ranks: Sequence[tuple[Report, object]], most: int) -> Iterator[Markup]:
    for mark, (report, _) in zip("AB", ranks, strict=True):
        rank = fullest_class(report)
        if rank is not None and rank.memory is not None and rank.memory.event_index:
            chart = memory_chart(rank, report.capacity_bytes, "issue", f"versus-{mark}", at_least=most,
                          kinds=report.detail.layers if report.detail else {})
            caption = element("figcaption", f"{mark}: memory of ranks {', '.join(rank.ranks)} over the step")
            yield element("figure", caption, element("div", chart, class_="plot"),
                          legend(category_entries(rank), "Categories at the peak"))


def _streams(a: Report, b: Report) -> Markup | None:
    ends = [r.detail.end_s for r in (a, b) if r.detail and r.detail.end_s]
    timelines = [timeline(r, f"versus-{mark}-lanes", f"{mark}: streams", max(ends)) for mark, r in (("A", a), ("B", b))
             if ends]
    return element("div", *timelines, class_="side") if timelines and all(timelines) else None


