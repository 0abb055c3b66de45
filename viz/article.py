"""One report on the page: verdict, key facts, a section for each class of ranks, assumptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from simcore.report import RankReport, Report, StepTime
from simcore.units import format_bytes, format_seconds
from viz.markup import Child, Markup, element, join
from viz.memory import chart
from viz.stack import Clock, has_time
from viz.tables import (
    at_rest_table,
    category_table,
    code,
    legend,
    owner_table,
    phase_key,
    table,
    traffic_table,
)

__all__ = ["article", "overview"]

Fact = tuple[str, Child]

_VERDICTS: Final = {
    "fits": ("\u2713", "Fits", "good"),
    "oom": ("\u2715", "Out of memory", "bad"),
    "illegal": ("\u26a0", "Illegal layout", "warn"),
    "error": ("\u26a0", "Could not be answered", "warn"),
    "none": ("\u2013", "No verdict", "plain"),
}
_MANY: Final = 4  # with more classes of ranks than this, only the highest is open
_MOST: Final = 16  # classes of ranks that are drawn; beyond them only the highest
_KINDS: Final = {
    "derived": "follows from the framework\u2019s source",
    "calibrated": "fitted to measured runs",
    "assumed": "not proved",
    "default": "the framework\u2019s own default",
}


def overview(reports: Sequence[Report]) -> Markup | None:
    """A table that leads to each report; only where there is more than one."""
    if not reports:
        return element("p", "There is no report to show.")
    if len(reports) == 1:
        return None
    rows = [[element("a", r.name, href=f"#report-{n}"), verdict(r), _device_peak(r), _bytes(r.capacity_bytes),
             _signed(r.headroom_bytes), format_seconds(r.time.step_s) if r.time else "\u2013"]
            for n, r in enumerate(reports, 1)]
    columns = ("scenario", "verdict", "peak on the device", "capacity", "headroom", "step")
    return element("nav", element("h2", f"{len(reports)} scenarios"), table("Verdicts and peaks", columns, rows, 2),
                   class_="overview", aria_label="Scenarios on this page")


def verdict(report: Report) -> Markup:
    """The answer as a sign, a word and a colour."""
    key = report.status if report.status != "ok" else report.verdict or "none"
    sign, word, css_class = _VERDICTS[key]
    return element("strong", element("span", sign, aria_hidden="true"), " ", word, class_=f"verdict {css_class}")


def article(report: Report, ordinal: int) -> Markup:
    """Everything about one report."""
    head = element("header", element("h2", report.name, id=f"report-{ordinal}-name", dir="auto"),
                   element("p", verdict(report), " ", _sentence(report), class_="answer"), _fill(report))
    chosen = [rank for n, rank in enumerate(report.ranks) if n < _MOST or rank is report.peak_rank]
    classes = (_rank(report, rank, f"r{ordinal}-{n}") for n, rank in enumerate(chosen, 1))
    left = len(report.ranks) - len(chosen)
    more = element("p", f"{left:,} more classes of ranks are in the result, not on this page.", class_="note")
    return element("article", head, _problems(report), _facts(report), *classes, more if left else None,
                   _assumptions(report),
                   _communicators(report), _scenario(report), id=f"report-{ordinal}",
                   aria_labelledby=f"report-{ordinal}-name")


def _sentence(report: Report) -> Markup | None:
    rank = report.peak_rank
    if rank is None or rank.peak is None or report.capacity_bytes is None:
        return None
    used, capacity = rank.peak.device_bytes, report.capacity_bytes
    ranks = join((element("span", part, class_="keep") for part in rank.ranks), ", ")
    words = f"{format_bytes(used)} of {format_bytes(capacity)} needed at the highest moment "
    return join((words, f"({used / capacity:.0%}), on ranks ", ranks, "."))


def _fill(report: Report) -> Markup | None:
    """A bar of the device: how much is allocated, how much is in use besides, where it ends."""
    peak = report.peak_rank.peak if report.peak_rank else None
    if peak is None or not report.capacity_bytes:
        return None
    whole = max(peak.device_bytes, report.capacity_bytes)
    allocated, used, end = (f"{100 * n / whole:.2f}%" for n in (peak.allocated_bytes, peak.device_bytes,
                                                                report.capacity_bytes))
    bars = (element("rect", width="100%", height=12, rx=3, class_="room"),
            element("rect", width=used, height=12, rx=3, class_="used"),
            element("rect", width=allocated, height=12, rx=3, class_="allocated"),
            element("line", x1=end, x2=end, y1=-4, y2=16, class_="end"))
    words = (f"Of {format_bytes(report.capacity_bytes)}, {format_bytes(peak.allocated_bytes)} allocated, "
             f"{format_bytes(peak.device_bytes)} needed in all")
    return element("svg", element("title", words), *bars, class_="fill", role="img", width="100%", height=12)


def _facts(report: Report) -> Markup | None:
    groups = (_fact_group("Layout", _scenario_facts(report)), _fact_group("Highest moment", _peak_facts(report)),
              _fact_group("One step", _time_facts(report)), _fact_group("Hosts", _host_facts(report)))
    return element("div", *groups, class_="facts") if any(groups) else None


def _fact_group(title: str, facts: Sequence[Fact]) -> Markup | None:
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in facts)
    return element("section", element("h3", title), element("dl", *rows)) if facts else None


def _scenario_facts(report: Report) -> list[Fact]:
    scenario = report.scenario
    facts: list[Fact] = [(key, scenario[key]) for key in ("model", "workload", "framework", "topology")
                         if isinstance(scenario.get(key), str)]
    mesh = scenario.get("mesh")
    if isinstance(mesh, dict) and mesh:
        facts.append(("mesh", ", ".join(f"{axis} {size}" for axis, size in mesh.items() if size)))
    ranks = sum(rank.num_ranks for rank in report.ranks)
    return facts + ([("ranks", f"{ranks:,}, in {len(report.ranks):,} classes")] if len(report.ranks) > 1 else [])


def _peak_facts(report: Report) -> list[Fact]:
    rank = report.peak_rank
    if rank is None or rank.peak is None:
        return []
    peak = rank.peak
    facts: list[Fact] = [
        ("allocated", format_bytes(peak.allocated_bytes)), ("reserved, cache too", format_bytes(peak.reserved_bytes)),
        ("needed in all", format_bytes(peak.device_bytes)), ("headroom", _signed(report.headroom_bytes)),
        ("when", f"{peak.phase}, microbatch {peak.microbatch}, {peak.step} step"),
        ("event", code(peak.event)), ("layer", code(peak.layer))]
    facts += [(f"beside it: {name}", format_bytes(size)) for name, size in peak.outside.items()]
    if report.highest_bytes != peak.device_bytes:
        facts.append(("in the highest draw", format_bytes(report.highest_bytes or 0)))
    low, high = peak.band_bytes
    between = [("likely between", f"{format_bytes(low)} and {format_bytes(high)}")] if low < high else []
    return facts + between + ([("on the host", format_bytes(peak.host_bytes))] if peak.host_bytes else [])


def _host_facts(report: Report) -> list[Fact]:
    """Of each phase the fullest host."""
    if report.host is None:
        return []
    words = {"fits": "", "oom": ", does not fit"}
    return [("capacity", format_bytes(report.host.capacity_bytes)),
            *((phase.phase.replace("_", " "), format_bytes(phase.host_bytes) + words[phase.host_verdict])
              for phase in report.host.phases)]


def _time_facts(report: Report) -> list[Fact]:
    time = report.time
    if time is None:
        return []
    parts = (("whole step", time.step_s), ("forward", time.forward_s), ("backward", time.backward_s),
             ("optimizer", time.optimizer_s), ("exposed communication", time.exposed_communication_s),
             *((part, time.parts[part]) for part in ("contention", "bubble", "host") if part in time.parts))
    return [*((name, format_seconds(seconds)) for name, seconds in parts),
            ("tokens per second and GPU", f"{time.tokens_per_s_per_gpu:,.0f}"),
            (f"model TFLOP/s per GPU, as {time.convention} counts", f"{time.model_tflops_per_gpu:,.1f}"),
            ("MFU", f"{time.mfu:.1%}"), *_limits(time)]


def _limits(time: StepTime) -> list[Fact]:
    """What bounds the step, and what it costs; nothing in results of older versions."""
    facts: list[Fact] = []
    if time.roofline:
        limit = f"{format_seconds(time.roofline.limit_s)} ({time.roofline.limit})"
        facts = [("bound by", time.roofline.bound.replace("_", " ")), ("physical limit", limit)]
    if time.cost:
        for name, cost in (("step", time.cost.per_step), ("million tokens", time.cost.per_million_tokens)):
            facts.append((f"USD per {name}", time.cost.note if cost is None else f"{cost:,.3g}"))
    return facts


def _rank(report: Report, rank: RankReport, identity: str) -> Markup:
    is_highest = rank is report.peak_rank and len(report.ranks) > 1
    name = f"Ranks {', '.join(rank.ranks)}" if rank.num_ranks > 1 else f"Rank {', '.join(rank.ranks)}"
    badge = element("span", "highest", class_="badge") if is_highest else None
    head = element("summary", element("h3", name, badge), element("span", _place(rank), class_="place"))
    tables = element("div", category_table(rank), owner_table(rank), class_="pair")
    is_open = is_highest or len(report.ranks) <= _MANY
    return element("details", head, _figure(rank, report.capacity_bytes, identity), tables, traffic_table(rank),
                   at_rest_table(rank), _rank_notes(rank), class_="rank", open=is_open)


def _place(rank: RankReport) -> str:
    coordinates = (f"{axis} {value}" for axis, value in rank.coordinates.items())
    count = f"{rank.num_ranks:,} rank{'' if rank.num_ranks == 1 else 's'}"
    return " \u00b7 ".join((count, f"stage {rank.stage}", *coordinates))


def _rank_notes(rank: RankReport) -> Markup:
    persist = "survive into the next forward" if rank.grads_persist else "are freed before the next forward"
    held, padding = format_bytes(rank.at_rest_bytes()), format_bytes(rank.padding_bytes)
    return element("p", f"Held at rest {held}, and {padding} of padding; gradients {persist}.", class_="note")


def _figure(rank: RankReport, capacity_bytes: int | None, identity: str) -> Markup:
    if rank.memory is None or not rank.memory.event_index:
        return element("p", "This report holds no memory over time for these ranks.", class_="note")
    clocks: tuple[Clock, ...] = ("issue", "time") if has_time(rank.memory) else ("issue",)
    plots = (element("div", chart(rank, capacity_bytes, clock, f"{identity}-{clock}"), class_="plot",
                     data_clock=clock, hidden=clock != "issue") for clock in clocks)
    frame = element("div", *plots, phase_key(rank), class_="plots")
    caption = element("figcaption", "Allocated memory over one step", _toggle(identity) if len(clocks) > 1 else None)
    return element("figure", caption, element("div", frame, legend(rank), class_="with-legend"))


def _toggle(identity: str) -> Markup:
    """Two radio buttons, shown by the script only: without it they would do nothing."""
    def choice(clock: Clock, words: str) -> Markup:
        button = element("input", type="radio", name=f"{identity}-clock", value=clock, checked=clock == "issue")
        return element("label", button, element("span", words))

    return element("fieldset", element("legend", "x axis"), choice("issue", "issue order"), choice("time", "time"),
                   class_="clock", hidden=True)


def _section(title: str, *children: Child) -> Markup:
    return element("section", element("h3", title), *children)


def _problems(report: Report) -> Markup | None:
    rows = (element("li", element("code", p.where), " ", p.message, element("span", f" [{p.rule}]", class_="note")
                    if p.rule else None) for p in report.problems)
    return _section("Problems", element("ul", *rows, class_="problems")) if report.problems else None


def _assumptions(report: Report) -> Markup | None:
    if not report.assumptions:
        return None
    rows = (element("li", element("span", a.kind, class_=f"badge {a.kind}", title=_KINDS[a.kind]),
                    element("span", element("strong", a.what), " = ", element("code", a.value)),
                    element("span", a.source, class_="note")) for a in report.assumptions)
    return _section("Assumptions", element("ul", *rows, class_="assumptions"))


def _communicators(report: Report) -> Markup | None:
    rows: Iterable[Markup] = (element("li", element("code", c.axis), f" over {c.size:,} ranks")
                              for c in report.communicators)
    return _section("Process groups", element("ul", *rows, class_="groups")) if report.communicators else None


def _scenario(report: Report) -> Markup | None:
    if not report.scenario:
        return None
    text = json.dumps(report.scenario, indent=2, ensure_ascii=False, default=str)
    block = element("pre", join((text,)), class_="scroll", tabindex=0, aria_label="Scenario as JSON")
    return element("details", element("summary", "The scenario, with every default filled in"), block, class_="source")


def _device_peak(report: Report) -> str:
    rank = report.peak_rank
    return _bytes(rank.peak.device_bytes if rank and rank.peak else None)


def _bytes(num_bytes: int | None) -> str:
    return "\u2013" if num_bytes is None else format_bytes(num_bytes)


def _signed(num_bytes: int | None) -> str:
    """Bytes with a true minus sign, so that a deficit is not overlooked."""
    return _bytes(num_bytes).replace("-", "\u2212") if num_bytes is not None else "\u2013"
