"""A class of ranks on the page: memory over the step, the peak opened up, traffic, what rests on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.results.detail import ClassDetail
from simcore.results.report import RankReport, Report
from simcore.units import format_bytes
from viz.charts.bars import short
from viz.charts.legend import key
from viz.charts.memory import chart
from viz.charts.peak_owners import all_holders, holder_bars
from viz.charts.placement import letter
from viz.charts.stack import Clock, has_time, peak_index
from viz.charts.traffic import link_looks, traffic_bars
from viz.markup import Markup, element, join
from viz.pages.tables import at_rest_table, category_table, legend, owner_table, phase_key, traffic_table

__all__ = ["Stacked", "by_part", "class_detail", "rank_section", "worst"]

Stacked = tuple[str, RankReport]
_MANY: Final = 4  # with more classes of ranks than this, only the highest is open


def worst(report: Report) -> RankReport | None:
    """The class that the verdict rests on."""
    return report.peak_rank or (report.ranks[0] if report.ranks else None)


def class_detail(report: Report, rank: RankReport) -> ClassDetail | None:
    """What pictures show of a class, if the report has it."""
    number = next(n for n, one in enumerate(report.ranks) if one is rank)
    return report.detail.classes[number] if report.detail and number < len(report.detail.classes) else None


def by_part(rank: RankReport, detail: ClassDetail) -> RankReport:
    """The same ranks with memory stacked by part of the model, for the same charts."""
    series = detail.by_part
    if series is None or rank.peak is None or not series.event_index:
        return rank
    at = peak_index(series)
    sizes = {name: values[at] for name, values in zip(series.categories, series.values, strict=True)}
    return rank.model_copy(update={"memory": series, "peak": rank.peak.model_copy(update={"by_category": sizes})})


def rank_section(report: Report, rank: RankReport, identity: str, *, is_full: bool = True) -> Markup:
    """All of one class, which opens and closes. `is_full`: memory on both clocks, and by part."""
    is_highest = rank is report.peak_rank and len(report.ranks) > 1
    name = f"{'Ranks' if rank.num_ranks > 1 else 'Rank'} {short(', '.join(rank.ranks), 90)}"
    number = next(n for n, one in enumerate(report.ranks) if one is rank)
    badges = [element("span", f"class {letter(number)}", class_="badge")]
    badges += [element("span", "highest", class_="badge")] if is_highest else []
    head = element("summary", element("h3", name, *badges), element("span", _place(rank), class_="place"))
    detail = class_detail(report, rank)
    is_open = is_highest or len(report.ranks) <= _MANY
    memory = _figure(report, rank, detail, identity, is_full=is_full)
    return element("details", head, memory, _peak(rank, detail, identity), _traffic(report, rank, identity),
                   at_rest_table(rank), _notes(rank), class_="rank", open=is_open, data_class=number)


def _place(rank: RankReport) -> str:
    coordinates = (f"{axis} {value}" for axis, value in rank.coordinates.items())
    count = f"{rank.num_ranks:,} rank{'' if rank.num_ranks == 1 else 's'}"
    return " \u00b7 ".join((count, f"stage {rank.stage}", *coordinates))


def _notes(rank: RankReport) -> Markup:
    persist = "survive into the next forward" if rank.grads_persist else "are freed before the next forward"
    held, padding = format_bytes(rank.at_rest_bytes()), format_bytes(rank.padding_bytes)
    return element("p", f"Held at rest {held}, and {padding} of padding; gradients {persist}.", class_="note")


def _peak(rank: RankReport, detail: ClassDetail | None, identity: str) -> Markup:
    opened = None if detail is None else holder_bars(rank, detail, f"{identity}-holders")
    if opened is None or detail is None:
        return element("div", category_table(rank), owner_table(rank), class_="pair")
    title = "Who is there at the peak, the largest first; % of all on the device"
    figure = element("figure", element("figcaption", title), opened)
    return join((element("div", category_table(rank), figure, class_="pair"), all_holders(detail)))


def _traffic(report: Report, rank: RankReport, identity: str) -> Markup | None:
    drawn = traffic_bars(report, rank, f"{identity}-traffic")
    if drawn is None:
        return None
    caption = element("figcaption", "What leaves a rank in one step, by collective and axis")
    more = element("details", element("summary", "By phase and format too"), traffic_table(rank), class_="more")
    return join((element("figure", caption, drawn, key(link_looks(), "Link classes")), more))


def _figure(report: Report, rank: RankReport, detail: ClassDetail | None, identity: str, *, is_full: bool
            ) -> Markup:
    if rank.memory is None or not rank.memory.event_index:
        return element("p", "This report holds no memory over time for these ranks.", class_="note")
    kinds = report.detail.layers if report.detail else {}
    clocks: tuple[Clock, ...] = ("issue", "time") if is_full and has_time(rank.memory) else ("issue",)
    stacks: list[Stacked] = [("category", rank)]
    if is_full and detail is not None and detail.by_part is not None:
        stacks.append(("part", by_part(rank, detail)))
    plots = [_plot(stacked, clock, report.capacity_bytes, kinds, f"{identity}-{name}-{clock}", name)
             for name, stacked in stacks for clock in clocks]
    frame = element("div", *plots, phase_key(rank), class_="plots")
    legends = (element("div", legend(stacked), data_stack=name, hidden=name != "category") for name, stacked in stacks)
    switches = (_switch(f"{identity}-stack", "stack by", {"category": "category", "part": "part of the model"}, "stack")
                if len(stacks) > 1 else None,
                _switch(f"{identity}-clock", "x axis", {"issue": "issue order", "time": "time"}, "clock")
                if len(clocks) > 1 else None)
    caption = element("figcaption", "Allocated memory over one step", element("span", *switches, class_="switches"))
    return element("figure", caption, element("div", frame, element("div", *legends), class_="with-legend"),
                   class_="memory")


def _plot(rank: RankReport, clock: Clock, capacity: int | None, kinds: Mapping[str, str], identity: str, name: str
          ) -> Markup:
    view = f"{name} {clock}"
    return element("div", chart(rank, capacity, clock, identity, kinds=kinds, stacked_by=name), class_="plot",
                   data_view=view, hidden=view != "category issue")


def _switch(identity: str, title: str, choices: Mapping[str, str], what: str) -> Markup:
    """Radio buttons, shown by the script only: without it they would do nothing."""
    buttons = (element("label", element("input", type="radio", name=identity, value=value, checked=not n),
                       element("span", words)) for n, (value, words) in enumerate(choices.items()))
    return element("fieldset", element("legend", title), *buttons, class_="choice", hidden=True, data_switch=what)
