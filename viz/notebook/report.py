"""The card of one result: verdict, numbers, and charts of its memory, its time and its traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.results.report import RankReport, Report, StepTime
from simcore.units import format_bytes, format_seconds
from viz.charts.bars import Bar, Segment, bars, category_segment, shortened
from viz.charts.legend import LegendEntry, entry_of, legend
from viz.charts.memory import memory_chart
from viz.charts.memory_legend import category_entries
from viz.charts.rank_class import fullest_class
from viz.charts.traffic import link_entries, traffic_bars
from viz.markup import Child, Markup, element, join
from viz.notebook.fragment import fragment
from viz.pages.phases import engine_section, phase_section
from viz.pages.tables import at_rest_table, bytes_or_dash, category_table, code, signed_bytes, table
from viz.pages.verdict import verdict

__all__ = ["report_html"]

_MOST_CLASSES: Final = 12
_PARTS: Final = {
    "forward": LegendEntry("forward", "fill-sky"), "backward": LegendEntry("backward", "fill-navy"),
    "optimizer": LegendEntry("optimizer", "fill-plum"), "contention": LegendEntry("contention", "fill-lilac"),
    "communication": LegendEntry("exposed communication", "wait-communication"),
    "bubble": LegendEntry("bubble", "wait-bubble"), "host": LegendEntry("host", "wait-host"),
    "refit": LegendEntry("refit", "fill-gold"), "generation": LegendEntry("generation", "fill-green"),
    "logprob": LegendEntry("log-probabilities", "fill-mint"), "reference": LegendEntry("reference", "fill-rose"),
    "host copies": LegendEntry("host copies", "fill-silver")}
"""Parts of the step time, in the colours and textures of the streams on a page."""


def report_html(report: Report) -> str:
    """Returns the HTML with which a notebook shows a result: verdict, numbers, charts of memory and time.

    Bars are of up to 12 classes of ranks; traffic, tables and memory over the step of the fullest class.
    """
    halves = [element("div", part) for part in (_ranks(report), _at_rest(report), _step(report)) if part]
    return fragment(join((
        element("p", report.name, class_="headline", dir="auto"),
        element("p", verdict(report), " ", _layout(report), class_="answer"), _problems(report), _tiles(report),
        phase_section(report, "phases"), engine_section(report, "engine"), element("div", *halves, class_="halves"),
        _sent(report), _memory(report), _more(report))))


def _layout(report: Report) -> str:
    """Returns model, framework, topology and mesh in a line."""
    scenario = report.scenario
    words = [str(scenario[name]) for name in ("model", "framework", "topology") if isinstance(scenario.get(name), str)]
    mesh = scenario.get("mesh")
    if isinstance(mesh, dict):
        words.append(" ".join(f"{axis} {size}" for axis, size in mesh.items() if size and size != 1) or "one rank")
    return " \u00b7 ".join(words)


def _tiles(report: Report) -> Markup | None:
    facts = [*_memory_facts(report), *_time_facts(report.time)]
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in facts)
    return element("dl", *rows, class_="tiles") if facts else None


def _memory_facts(report: Report) -> Iterator[tuple[str, str]]:
    rank = fullest_class(report)
    if rank is None:
        return
    if rank.peak is not None:
        yield "peak of the device", format_bytes(rank.peak.device_bytes)
        yield "capacity", bytes_or_dash(report.capacity_bytes)
        yield "headroom", signed_bytes(report.headroom_bytes)
        yield "allocated", format_bytes(rank.peak.allocated_bytes)
        yield "at its highest in", rank.peak.phase
    yield "at rest", format_bytes(rank.at_rest_bytes() + rank.padding_bytes)


def _time_facts(time: StepTime | None) -> Iterator[tuple[str, str]]:
    if time is None:
        return
    yield "step", format_seconds(time.step_s)
    yield "tokens/s per GPU", f"{time.tokens_per_s_per_gpu:,.0f}"
    yield "TFLOP/s per GPU", f"{time.model_tflops_per_gpu:,.1f}"
    yield "MFU", f"{time.mfu:.1%}"
    if time.roofline:
        yield "bound by", time.roofline.bound.replace("_", " ")
    if time.cost and time.cost.per_million_tokens is not None:
        yield "USD per M tokens", f"{time.cost.per_million_tokens:,.3g}"


def _problems(report: Report) -> Markup | None:
    rows = [element("li", element("code", p.where), " ", p.message, element("span", f" [{p.rule}]", class_="note")
                    if p.rule else None) for p in report.problems]
    rows += [element("li", f"to make it {'fit' if advice.verdict == 'fits' else 'smaller'}: ", code(" ".join(
        f"{name}={value}" for name, value in advice.changes.items())), f" (peak {format_bytes(advice.peak_bytes)})")
        for advice in report.advice]
    return element("ul", *rows, class_="problems") if rows else None


def _ranks(report: Report) -> Markup | None:
    """Draws the memory of each class of ranks at its peak, by category; None without peaks."""
    shown = [rank for rank in report.ranks if rank.peak][:_MOST_CLASSES]
    if not shown:
        return None
    scale = max(report.capacity_bytes or 0, *(rank.peak.device_bytes for rank in shown if rank.peak), 1)
    end = report.capacity_bytes / scale if report.capacity_bytes else None
    chart = bars([_class(rank, scale, report.capacity_bytes) for rank in shown], "Memory of each class of ranks",
                 "ranks", end=end)
    left = sum(1 for rank in report.ranks if rank.peak) - len(shown)
    caption = "Memory at the highest moment" + (f", {left:,} more classes left out" if left else "")
    names = dict.fromkeys(name for rank in shown for name, size in _sizes(rank) if size * 100 > scale)
    return element("figure", element("figcaption", caption), chart, legend([entry_of(name) for name in names],
                                                                       "Categories"))


def _sizes(rank: RankReport) -> list[tuple[str, int]]:
    """Returns the bytes by category, largest first, then those outside the allocator."""
    peak = rank.peak
    if peak is None:
        return []
    outside = {name: size for name, size in peak.outside.items() if name not in peak.by_category}
    inside = sorted(peak.by_category.items(), key=lambda item: -item[1])
    return [*inside, *sorted(outside.items(), key=lambda item: -item[1])]


def _class(rank: RankReport, scale: int, capacity: int | None) -> Bar:
    used = rank.peak.device_bytes if rank.peak else 0
    share = f" \u00b7 {used / capacity:.0%}" if capacity else ""
    ranks = f"{'rank' if rank.num_ranks == 1 else 'ranks'} {shortened(', '.join(rank.ranks), 28)}"
    segments = (category_segment(size / scale, name, f"{name}: {format_bytes(size)}") for name, size in _sizes(rank))
    return Bar(f"{ranks} \u00b7 stage {rank.stage}", f"{format_bytes(used)}{share}", tuple(segments))


def _step(report: Report) -> Markup | None:
    """Draws the parts of the step time as one bar."""
    time = report.time
    parts = [(entry, time.parts[name]) for name, entry in _PARTS.items() if time.parts.get(name)] if time else []
    total_s = sum(seconds for _, seconds in parts)
    if not total_s:
        return None
    segments = tuple(Segment(seconds / total_s, f"{entry.words}: {format_seconds(seconds)}", entry.css_class)
                     for entry, seconds in parts)
    title = "Where the time of a step goes"
    chart = bars([Bar("one step", format_seconds(total_s), segments)], title, "time")
    entries = [LegendEntry(entry.words, entry.css_class, None, f"{seconds / total_s:.1%}") for entry, seconds in parts]
    return element("figure", element("figcaption", title), chart, legend(entries, "Parts"))


def _sent(report: Report) -> Markup | None:
    rank = fullest_class(report)
    chart = traffic_bars(report, rank, "traffic") if rank else None
    if chart is None or rank is None:
        return None
    used = (any(row.nvlink_bytes for row in rank.traffic), any(row.network_bytes for row in rank.traffic), True)
    links = [entry for entry, is_used in zip(link_entries(rank), used, strict=False) if is_used]
    return element("figure", element("figcaption", "What leaves a rank in one step"), chart, legend(links, "Links"))


def _at_rest(report: Report) -> Markup | None:
    """Returns the memory at rest, for a result without a peak."""
    rank = fullest_class(report)
    return at_rest_table(rank) if rank is not None and rank.peak is None else None


def _memory(report: Report) -> Markup | None:
    """Draws the memory over the step of the fullest class of ranks; None without a series."""
    rank = fullest_class(report)
    if rank is None or rank.memory is None or not rank.memory.event_index:
        return None
    kinds = report.detail.layers if report.detail else {}
    chart = memory_chart(rank, report.capacity_bytes, "issue", "memory", kinds=kinds)
    caption = f"Allocated memory over one step, ranks {shortened(', '.join(rank.ranks), 60)}"
    return element("figure", element("figcaption", caption), element("div", chart, class_="plot"),
                   legend(category_entries(rank), "Categories at the peak"))


def _more(report: Report) -> Markup | None:
    rank = fullest_class(report)
    if rank is None or rank.peak is None:
        return None
    rows: list[list[Child]] = [[a.what, a.value, a.kind, a.source] for a in report.assumptions]
    assumptions = table("What the scenario left open", ("what", "value", "kind", "source"), rows, 9) if rows else None
    return element("details", element("summary", "At rest, at the peak, and what was assumed"), at_rest_table(rank),
                   category_table(rank), assumptions)
