"""What results show in a notebook: a card each, with figures, that needs no script and no network.

It stands in a page with rules and a theme of its own: see `viz/notebook/fragment.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.results.compare import Comparison
from simcore.results.report import RankReport, Report, StepTime
from simcore.units import format_bytes, format_seconds
from viz.charts.bars import Bar, Segment, bars, of_category, short
from viz.charts.legend import Look, key, look_of
from viz.charts.memory import chart
from viz.charts.traffic import link_looks, traffic_bars
from viz.markup import Child, Markup, element, join
from viz.notebook.fragment import piece
from viz.pages.comparison import number_tables
from viz.pages.phases import phases, serving
from viz.pages.ranks import worst
from viz.pages.tables import at_rest_table, category_looks, category_table, code, table
from viz.pages.verdict import optional_bytes, signed_bytes, verdict

__all__ = ["comparison_html", "report_html"]

_MOST_CLASSES: Final = 12
_PARTS: Final = {
    "forward": Look("forward", "fill-sky"), "backward": Look("backward", "fill-navy"),
    "optimizer": Look("optimizer", "fill-plum"), "contention": Look("contention", "fill-lilac"),
    "communication": Look("exposed communication", "wait-communication"), "bubble": Look("bubble", "wait-bubble"),
    "host": Look("host", "wait-host")}
"""Where the time of a step goes, in the looks of the page's streams."""


def report_html(report: Report) -> str:
    """One result: whether it fits, its numbers, what fills the ranks, where the time of a step goes."""
    halves = [element("div", part) for part in (_ranks(report), _rest(report), _step(report)) if part]
    return piece(join((
        element("p", report.name, class_="headline", dir="auto"),
        element("p", verdict(report), " ", _asked(report), class_="answer"), _problems(report), _tiles(report),
        phases(report, "phases"), serving(report, "engine"), element("div", *halves, class_="halves"),
        _sent(report), _memory(report), _more(report))))


def _asked(report: Report) -> str:
    """The layout in a line."""
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
    rank = worst(report)
    if rank is None:
        return
    if rank.peak is not None:
        yield "peak of the device", format_bytes(rank.peak.device_bytes)
        yield "capacity", optional_bytes(report.capacity_bytes)
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
    rows += [element("li", f"to make it {'fit' if one.verdict == 'fits' else 'smaller'}: ", code(" ".join(
        f"{name}={value}" for name, value in one.changes.items())), f" (peak {format_bytes(one.peak_bytes)})")
        for one in report.advice]
    return element("ul", *rows, class_="problems") if rows else None


def _ranks(report: Report) -> Markup | None:
    """How full the device of each class of ranks is at its highest moment, by category."""
    shown = [rank for rank in report.ranks if rank.peak][:_MOST_CLASSES]
    if not shown:
        return None
    whole = max(report.capacity_bytes or 0, *(rank.peak.device_bytes for rank in shown if rank.peak), 1)
    end = report.capacity_bytes / whole if report.capacity_bytes else None
    drawn = bars([_class(rank, whole, report.capacity_bytes) for rank in shown], "Memory of each class of ranks",
                 "ranks", end=end)
    left = sum(1 for rank in report.ranks if rank.peak) - len(shown)
    caption = "Memory at the highest moment" + (f", {left:,} more classes left out" if left else "")
    names = dict.fromkeys(name for rank in shown for name, size in _sizes(rank) if size * 100 > whole)
    return element("figure", element("figcaption", caption), drawn, key([look_of(name) for name in names],
                                                                       "Categories"))


def _sizes(rank: RankReport) -> list[tuple[str, int]]:
    """Categories, the largest first, then what lies beside the allocator."""
    peak = rank.peak
    if peak is None:
        return []
    beside = {name: size for name, size in peak.outside.items() if name not in peak.by_category}
    inside = sorted(peak.by_category.items(), key=lambda item: -item[1])
    return [*inside, *sorted(beside.items(), key=lambda item: -item[1])]


def _class(rank: RankReport, whole: int, capacity: int | None) -> Bar:
    used = rank.peak.device_bytes if rank.peak else 0
    share = f" \u00b7 {used / capacity:.0%}" if capacity else ""
    who = f"{'rank' if rank.num_ranks == 1 else 'ranks'} {short(', '.join(rank.ranks), 28)} \u00b7 stage {rank.stage}"
    segments = (of_category(size / whole, name, f"{name}: {format_bytes(size)}") for name, size in _sizes(rank))
    return Bar(who, f"{format_bytes(used)}{share}", tuple(segments))


def _step(report: Report) -> Markup | None:
    """Where the time of a step goes: one bar; of a step of several phases, that of training."""
    time = report.time
    parts = [(look, time.parts[name]) for name, look in _PARTS.items() if time.parts.get(name)] if time else []
    whole = sum(seconds for _, seconds in parts)
    if not whole:
        return None
    segments = tuple(Segment(seconds / whole, f"{look.words}: {format_seconds(seconds)}", look.css_class)
                     for look, seconds in parts)
    what, title = ("training", "Where the time of training goes") if report.phases else (
        "one step", "Where the time of a step goes")
    drawn = bars([Bar(what, format_seconds(whole), segments)], title, "time")
    looks = [Look(look.words, look.css_class, None, f"{seconds / whole:.1%}") for look, seconds in parts]
    return element("figure", element("figcaption", title), drawn, key(looks, "Parts"))


def _sent(report: Report) -> Markup | None:
    rank = worst(report)
    drawn = traffic_bars(report, rank, "traffic") if rank else None
    if drawn is None or rank is None:
        return None
    links = [look for look, there in zip(link_looks(), (any(row.nvlink_bytes for row in rank.traffic),
                                                        any(row.network_bytes for row in rank.traffic)),
                                         strict=True) if there]
    return element("figure", element("figcaption", "What leaves a rank in one step"), drawn, key(links, "Links"))


def _rest(report: Report) -> Markup | None:
    """Of a result without a peak: what lies on the ranks."""
    rank = worst(report)
    return at_rest_table(rank) if rank is not None and rank.peak is None else None


def _memory(report: Report) -> Markup | None:
    """Memory over the step of the worst ranks, where it was asked for."""
    rank = worst(report)
    if rank is None or rank.memory is None or not rank.memory.event_index:
        return None
    drawn = chart(rank, report.capacity_bytes, "issue", "memory", kinds=report.detail.layers if report.detail else {})
    caption = f"Allocated memory over one step, ranks {short(', '.join(rank.ranks), 60)}"
    return element("figure", element("figcaption", caption), element("div", drawn, class_="plot"),
                   key(category_looks(rank), "Categories at the peak"))


def _more(report: Report) -> Markup | None:
    rank = worst(report)
    if rank is None or rank.peak is None:
        return None
    rows: list[list[Child]] = [[one.what, one.value, one.kind, one.source] for one in report.assumptions]
    told = table("What the scenario left open", ("what", "value", "kind", "source"), rows, 9) if rows else None
    return element("details", element("summary", "At rest, at the peak, and what was assumed"), at_rest_table(rank),
                   category_table(rank), told)


def comparison_html(both: Comparison) -> str:
    """Two results: each number with its difference; of a side without any, that it has none."""
    rows = [*both.at_rest, *both.peak, *both.time]
    found = {"A": any(row.a for row in rows), "B": any(row.b for row in rows)}
    missing = [side for side, is_there in found.items() if not is_there]
    names = (element("p", f"{side}  {name}", class_="headline", dir="auto") for side, name in zip("AB", (
        both.a, both.b), strict=True))
    told = (element("p", f"{' and '.join(missing)} {'have' if len(missing) > 1 else 'has'} no numbers, so there is "
                    "nothing to compare: the layout was refused, or could not be answered.", class_="answer")
            if missing else element("div", *number_tables(both), class_="numbers"))
    return piece(join((*names, told)))
