"""The article of one report: verdict, key facts, placement map, classes of ranks, streams, assumptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from simcore.results.report import HOSTED_PHASES, HostPhase, ProblemRow, Report, StepTime
from simcore.units import format_bytes, format_seconds
from viz.charts.legend import legend
from viz.charts.placement import component_entries, peers, placement
from viz.charts.rank_class import class_detail
from viz.markup import Child, Markup, element, join
from viz.pages.detail_tables import tensor_table
from viz.pages.phases import engine_section, phase_section
from viz.pages.ranks import rank_section
from viz.pages.tables import code, signed_bytes, table
from viz.pages.timeline import timeline
from viz.pages.verdict import device_fill, verdict

__all__ = ["article", "assumptions", "evidence", "facts", "placement_figure", "problems", "sentence"]

Fact = tuple[str, Child]

_MOST: Final = 12  # classes of ranks whose tensors are listed
_ROOM: Final = 2_600_000  # characters for classes of ranks; beyond them only the fullest is drawn
_FULL: Final = 4  # classes whose memory is drawn on both clocks and by part of the model
_KINDS: Final = {
    "derived": "follows from the framework\u2019s source",
    "calibrated": "fitted to measured runs",
    "assumed": "not proved",
    "default": "the framework\u2019s own default",
}


def article(report: Report, ordinal: int, share: float = 1.0) -> Markup:
    """Returns everything about one report as HTML. `ordinal`: its number on the page, from 1.

    `share`: its share, 0 to 1, of the characters that a page has for classes of ranks; classes for which there is no
    room are left out, but never the fullest.
    """
    head = element("header", element("h2", report.name, id=f"report-{ordinal}-name", dir="auto"),
                   element("p", verdict(report), " ", sentence(report), class_="answer"), device_fill(report))
    classes = list(_classes(report, ordinal, share * _ROOM))
    left = len(report.ranks) - len(classes)
    more = element("p", f"{left:,} more classes of ranks are in the result, not on this page.", class_="note")
    name = f"r{ordinal}"
    return element(
        "article", head, problems(report), evidence(report), _advice(report), facts(report),
        phase_section(report, f"{name}-phases"), engine_section(report, f"{name}-engine"),
        placement_figure(report, f"{name}-map"),
        *classes, more if left else None, _streams(report, f"{name}-streams"), _adapters(report), assumptions(report),
        _communicators(report), _scenario(report), id=f"report-{ordinal}", aria_labelledby=f"report-{ordinal}-name")


def _classes(report: Report, ordinal: int, room: float) -> Iterator[Markup]:
    """Yields the sections of classes in order while there is room, and always that of the fullest class."""
    for number, rank in enumerate(report.ranks, 1):
        is_highest = rank is report.peak_rank
        if room > 0 or is_highest:
            section = rank_section(report, rank, f"r{ordinal}-{number}", is_full=number <= _FULL or is_highest)
            room -= len(section)
            yield section


def sentence(report: Report) -> Markup | None:
    """Returns the peak of the fullest class against the capacity, in words; None without either."""
    rank = report.peak_rank
    if rank is None or rank.peak is None or report.capacity_bytes is None:
        return None
    used, capacity = rank.peak.device_bytes, report.capacity_bytes
    ranks = join((element("span", part, class_="keep") for part in rank.ranks[:8]), ", ")
    more = f" and {len(rank.ranks) - 8:,} more ranges" if len(rank.ranks) > 8 else ""
    words = f"Needs {format_bytes(used)} at the highest moment, {used / capacity:.0%} of the {format_bytes(capacity)} "
    where = f"usable on each GPU, on rank{'' if _is_one(rank.ranks) else 's'} "
    return join((words, where, ranks, f"{more}.{_unsure(report)}{_elsewhere(report)}"))


def _is_one(ranges: Sequence[str]) -> bool:
    """True for a single rank, such as `["0"]`."""
    return len(ranges) == 1 and ranges[0].isdigit()


def _elsewhere(report: Report) -> str:
    """Returns why a job whose step has room on its GPUs does not fit, or may not; "" where the step decides."""
    if report.job_verdict == report.verdict or report.host is None:
        return ""
    room = format_bytes(report.host.capacity_bytes)
    ranks = f"{report.host.ranks_per_host} rank{'s' * (report.host.ranks_per_host > 1)}"
    told = [f" But a host of {ranks} needs {format_bytes(phase.host_bytes)} of its {room} in "
            f"{'a step' if phase.phase == 'first_step' else phase.phase}." for phase in report.host.phases
            if phase.host_verdict == "oom" and phase.phase in HOSTED_PHASES]
    return "".join(told) or f" But {report.job_verdict} in {' and '.join(report.worse_phases)}."


def _unsure(report: Report) -> str:
    """Returns the range that reaches across the limit where the verdict is unsure; else ""."""
    if report.verdict != "unsure" or report.band_bytes is None:
        return ""
    low, high = map(format_bytes, report.band_bytes)
    return f" Measured runs of such layouts needed the equivalent of {low} to {high}."


def evidence(report: Report) -> Markup | None:
    """Returns what is known about such layouts, in a line; None where the report has no evidence."""
    known = report.evidence
    return element("p", element("strong", "Evidence: "), known.sentence(has_phases=bool(report.phases)), ".",
                   class_="note") if known else None


def placement_figure(report: Report, identity: str) -> Markup | None:
    """Returns the figure of what lies on each rank, with its tensors; None where there is no map."""
    chart = placement(report, identity)
    if chart is None:
        return None
    words = "Placement: choose a rank to see its tensors" if report.detail else "Placement: what lies on each rank"
    caption = element("figcaption", words, peers(report, identity))
    chosen = element("p", "", class_="chosen", aria_live="polite", hidden=True)
    tensors = (element("div", tensor_table(rank, detail, f"{identity}-tensors-{n}"), data_class=n)
               for n, rank in enumerate(report.ranks[:_MOST]) if (detail := class_detail(report, rank)) is not None)
    return element("figure", caption, chart, legend(component_entries(report), "Components"), chosen,
                   element("div", *tensors, class_="inspector"), class_="placement card")


def _streams(report: Report, identity: str) -> Markup | None:
    chart = timeline(report, identity, "Streams over one step")
    return None if chart is None else element("section", chart, class_="card")


def facts(report: Report) -> Markup | None:
    """Returns the tables of key facts: layout, highest moment, step, hosts; None without any."""
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
        facts.append(("mesh", ", ".join(f"{axis} {size}" for axis, size in mesh.items() if size and size != 1) or "1"))
    ranks = sum(rank.num_ranks for rank in report.ranks)
    return facts + ([("ranks", f"{ranks:,}, in {len(report.ranks):,} classes")] if len(report.ranks) > 1 else [])


def _peak_facts(report: Report) -> list[Fact]:
    rank = report.peak_rank
    if rank is None or rank.peak is None:
        return []
    peak = rank.peak
    facts: list[Fact] = [
        ("allocated", format_bytes(peak.allocated_bytes)), ("reserved, cache too", format_bytes(peak.reserved_bytes)),
        ("needed in all", format_bytes(peak.device_bytes)), ("headroom", signed_bytes(report.headroom_bytes)),
        ("when", f"{peak.phase}, microbatch {peak.microbatch}, {peak.step} step"),
        ("event", code(peak.event)), ("layer", code(peak.layer))]
    facts += [(f"beside it: {name}", format_bytes(size)) for name, size in peak.outside.items()]
    if report.highest_bytes != peak.device_bytes:
        facts.append(("in the highest draw", format_bytes(report.highest_bytes or 0)))
    low, high = peak.band_bytes
    between = [("likely between", f"{format_bytes(low)} and {format_bytes(high)}")] if low < high else []
    return facts + between + ([("on the host", format_bytes(peak.host_bytes))] if peak.host_bytes else [])


def _host_facts(report: Report) -> list[Fact]:
    """Returns the capacity of a host, and the memory of the fullest host in each phase."""
    if report.host is None:
        return []
    words = {"fits": "", "oom": ", does not fit"}
    return [("capacity", format_bytes(report.host.capacity_bytes)),
            *((phase.phase.replace("_", " "),
               f"{format_bytes(phase.host_bytes)}{words[phase.host_verdict]}{_takes(phase)}")
              for phase in report.host.phases)]


def _takes(phase: HostPhase) -> str:
    return "" if phase.seconds is None else f", takes {format_seconds(phase.seconds)}"


_FURTHER_PARTS: Final = ("contention", "bubble", "host", "refit", "generation", "logprob", "reference", "host copies")
"""Parts of a step besides passes, the optimizer and communication; the last five are of a step with phases."""


def _time_facts(report: Report) -> list[Fact]:
    time = report.time
    if time is None:
        return []
    parts = (("whole step", time.step_s), ("forward", time.forward_s), ("backward", time.backward_s),
             ("optimizer", time.optimizer_s), ("exposed communication", time.exposed_communication_s),
             *((part, time.parts[part]) for part in _FURTHER_PARTS if part in time.parts))
    return [*((name, format_seconds(seconds)) for name, seconds in parts),
            ("tokens per second and GPU", f"{time.tokens_per_s_per_gpu:,.0f}"),
            (f"model TFLOP/s per GPU, as {time.convention} counts", f"{time.model_tflops_per_gpu:,.1f}"),
            ("MFU", f"{time.mfu:.1%}"), *_limits(time)]


def _limits(time: StepTime) -> list[Fact]:
    """Returns what bounds the step and what it costs; results of older versions have neither."""
    facts: list[Fact] = []
    if time.roofline:
        limit = f"{format_seconds(time.roofline.limit_s)} ({time.roofline.limit})"
        facts = [("bound by", time.roofline.bound.replace("_", " ")), ("physical limit", limit)]
    if time.cost:
        for name, cost in (("step", time.cost.per_step), ("million tokens", time.cost.per_million_tokens)):
            facts.append((f"USD per {name}", time.cost.note if cost is None else f"{cost:,.3g}"))
    return facts


def _section(title: str, *children: Child) -> Markup:
    return element("section", element("h3", title), *children)


def problems(report: Report) -> Markup | None:
    """Returns the list of problems, each with its place and rule; None without any."""
    rows = (element("li", element("code", p.where), ": ", _in_words(p), element("span", f" [{p.rule}]", class_="note")
                    if p.rule else None) for p in report.problems)
    return _section("Problems", element("ul", *rows, class_="problems")) if report.problems else None


def _in_words(problem: ProblemRow) -> str:
    """Message of a problem beside its place, which is not said twice."""
    return problem.message.removeprefix(f"{problem.where}: ").replace("not yet: ", "not modelled yet: ", 1)


def _advice(report: Report) -> Markup | None:
    """Returns a table of changes that would make the scenario fit, as text for `--set`."""
    if not report.advice:
        return None
    words = {"fits": "fits", "unsure": "unsure", "oom": "still does not fit"}
    rows = [[code(" ".join(f"{key}={value}" for key, value in advice.changes.items())), words[advice.verdict],
             format_bytes(advice.peak_bytes), signed_bytes(advice.headroom_bytes)] for advice in report.advice]
    return _section("What would make it fit", table("The smallest changes first; each was simulated", (
        "--set", "verdict", "peak", "headroom"), rows, 2))


def _adapters(report: Report) -> Markup | None:
    """Returns a table of the modules that LoRA adapts, and the patterns that match none; None without adapters."""
    adapters = report.adapters
    if adapters is None:
        return None
    rows = [[code(path), f"{count:,}", "never learn: a fused kernel bypasses them" if path in adapters.without_gradient
             else ""] for path, count in adapters.adapted.items()]
    missed = element("p", f"These patterns hit nothing: {', '.join(adapters.unmatched_targets)}.", class_="note")
    return _section("Adapters", table("Modules that are adapted", ("module", "in layers", ""), rows, 9),
                    missed if adapters.unmatched_targets else None)


def assumptions(report: Report) -> Markup | None:
    """Returns the list of assumptions with kind and source; None without any."""
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
