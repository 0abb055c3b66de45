"""Section of a class of ranks: memory over the step, owners at the peak, traffic, memory at rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.results.detail import ClassDetail
from simcore.results.report import RankReport, Report
from simcore.units import format_bytes
from viz.charts.bars import shortened
from viz.charts.legend import legend
from viz.charts.measured import NOTHING, Measured
from viz.charts.memory import memory_chart
from viz.charts.memory_legend import memory_legend, phase_legend
from viz.charts.peak_owners import peak_owner_bars
from viz.charts.rank_class import by_part, class_detail, class_letter
from viz.charts.stack import Clock, has_time
from viz.charts.traffic import link_entries, traffic_bars
from viz.markup import Markup, element, join
from viz.pages.detail_tables import peak_owner_table
from viz.pages.tables import at_rest_table, category_table, owner_table, traffic_table

__all__ = ["memory_figure", "rank_section"]

Stacked = tuple[str, RankReport]
_MANY: Final = 4  # with more classes of ranks than this, only the fullest is open


def rank_section(report: Report, rank: RankReport, identity: str, *, is_full: bool = True) -> Markup:
    """Returns the section of one class of ranks, which opens and closes: memory, owners, traffic, at rest.

    `is_full`: memory on both clocks (issue order, time), and also by part of the model. `identity`: begin of the ids in
    it, unique on the page.
    """
    is_highest = rank is report.peak_rank and len(report.ranks) > 1
    name = f"{'Ranks' if rank.num_ranks > 1 else 'Rank'} {shortened(', '.join(rank.ranks), 90)}"
    number = next(n for n, other in enumerate(report.ranks) if other is rank)
    badges = [element("span", f"class {class_letter(number)}", class_="badge")]
    badges += [element("span", "highest", class_="badge")] if is_highest else []
    head = element("summary", element("h3", name, *badges), element("span", _place(rank), class_="place"))
    detail = class_detail(report, rank)
    is_open = is_highest or len(report.ranks) <= _MANY
    memory = memory_figure(report, rank, identity, is_full=is_full)
    return element("details", head, memory, _peak(rank, detail, identity), _traffic(report, rank, identity),
                   at_rest_table(rank), _notes(rank), class_="rank", open=is_open, data_class=number)


def _place(rank: RankReport) -> str:
    coordinates = (f"{axis} {value}" for axis, value in rank.coordinates.items())
    count = f"{rank.num_ranks:,} rank{'' if rank.num_ranks == 1 else 's'}"
    return " \u00b7 ".join((count, f"stage {rank.stage}", *coordinates))


def _notes(rank: RankReport) -> Markup:
    persist = "survive into the next forward" if rank.grads_persist else "are freed before the next forward"
    at_rest, padding = format_bytes(rank.at_rest_bytes()), format_bytes(rank.padding_bytes)
    return element("p", f"Held at rest {at_rest}, and {padding} of padding; gradients {persist}.", class_="note")


def _peak(rank: RankReport, detail: ClassDetail | None, identity: str) -> Markup:
    owners = None if detail is None else peak_owner_bars(rank, detail, f"{identity}-holders")
    if owners is None or detail is None:
        return element("div", category_table(rank), owner_table(rank), class_="pair")
    title = "Who is there at the peak, the largest first; % of all on the device"
    figure = element("figure", element("figcaption", title), owners)
    return join((element("div", category_table(rank), figure, class_="pair"), peak_owner_table(detail)))


def _traffic(report: Report, rank: RankReport, identity: str) -> Markup | None:
    chart = traffic_bars(report, rank, f"{identity}-traffic")
    if chart is None:
        return None
    caption = element("figcaption", "What leaves a rank in one step, by collective and axis")
    more = element("details", element("summary", "By phase and format too"), traffic_table(rank), class_="more")
    return join((element("figure", caption, chart, legend(link_entries(rank), "Link classes")), more))


def memory_figure(report: Report, rank: RankReport, identity: str, *, is_full: bool = True,
                  measured: Measured = NOTHING) -> Markup:
    """Returns the figure of memory over the step of one class, with its legends; a note without such memory.

    `is_full`: on both clocks, and also by part of the model. `identity`: begin of the ids in it, unique on the page.
    `measured`: drawn over it.
    """
    detail = class_detail(report, rank)
    if rank.memory is None or not rank.memory.event_index:
        return element("p", "This report holds no memory over time for these ranks.", class_="note")
    kinds = report.detail.layers if report.detail else {}
    clocks: tuple[Clock, ...] = ("issue", "time") if is_full and has_time(rank.memory) else ("issue",)
    stacks: list[Stacked] = [("category", rank)]
    if is_full and detail is not None and detail.by_part is not None:
        stacks.append(("part", by_part(rank, detail)))
    plots = [_plot(stacked, clock, report.capacity_bytes, kinds, f"{identity}-{name}-{clock}", name, measured)
             for name, stacked in stacks for clock in clocks]
    frame = element("div", *plots, phase_legend(rank), class_="plots")
    legends = (element("div", memory_legend(stacked), data_stack=name, hidden=name != "category")
               for name, stacked in stacks)
    switches = (_switch(f"{identity}-stack", "stack by", {"category": "category", "part": "part of the model"}, "stack")
                if len(stacks) > 1 else None,
                _switch(f"{identity}-clock", "x axis", {"issue": "issue order", "time": "time"}, "clock")
                if len(clocks) > 1 else None)
    caption = element("figcaption", "Allocated memory over one step", element("span", *switches, class_="switches"))
    return element("figure", caption, element("div", frame, element("div", *legends), class_="with-legend"),
                   class_="memory")


def _plot(rank: RankReport, clock: Clock, capacity: int | None, kinds: Mapping[str, str], identity: str, name: str,
          measured: Measured) -> Markup:
    view = f"{name} {clock}"
    chart = memory_chart(rank, capacity, clock, identity, kinds=kinds, stacked_by=name, measured=measured)
    return element("div", chart, class_="plot", data_view=view, hidden=view != "category issue")


def _switch(identity: str, title: str, choices: Mapping[str, str], what: str) -> Markup:
    """Returns radio buttons that only the script shows: without it they would do nothing."""
    buttons = (element("label", element("input", type="radio", name=identity, value=value, checked=not n),
                       element("span", words)) for n, (value, words) in enumerate(choices.items()))
    return element("fieldset", element("legend", title), *buttons, class_="choice", hidden=True, data_switch=what)
