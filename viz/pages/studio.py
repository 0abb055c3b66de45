"""Parts of the studio's page about one report; its frame, which a script fills with them.

The texts are those of pages, without a script in them. The studio's own script puts them in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

from simcore.results.report import Advice, Report
from simcore.units import format_bytes, format_seconds
from viz.charts.class_bars import Mark, class_bars, drawn_categories
from viz.charts.legend import entry_of, legend
from viz.charts.measured import NOTHING, Measured
from viz.charts.rank_class import fullest_class
from viz.charts.traffic import link_entries, traffic_bars
from viz.markup import Markup, element, join
from viz.pages import report as sections
from viz.pages.comparison import comparison
from viz.pages.ranks import memory_figure
from viz.pages.tables import code, table
from viz.pages.timeline import timeline
from viz.pages.verdict import verdict
from viz.palette import texture_definitions

__all__ = ["advice_part", "first_parts", "measured_part", "memory_part", "page_of_studio", "placement_part",
           "script_of_pages", "streams_part", "versus_part"]

_SCRIPT: Final = files("viz.pages").joinpath("page.js").read_text(encoding="utf-8").strip()


def page_of_studio(body: str) -> str:
    """Returns the HTML text of the page. `body`: markup of its panels, which are empty."""
    textures = element("svg", texture_definitions(), class_="textures", width=0, height=0, aria_hidden="true")
    head = element(
        "head", element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"), element("title", "rankscope studio"),
        Markup('<link rel="icon" href="data:,"/><link rel="stylesheet" href="/style.css"/>'),
        element("script", src="/pages.js", defer=True), element("script", type="module", src="/app.js"))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', textures, Markup(body)), lang='en')}\n"


def script_of_pages() -> str:
    """Returns the script that pages have: it makes charts switch, zoom, and open."""
    return _SCRIPT


def first_parts(report: Report, marks: Sequence[Mark] = ()) -> dict[str, str]:
    """Returns the parts that need no detail, by the name of their panel: verdict, bars, traffic, facts, and others.

    `marks`: measured sizes that the bars show too.
    """
    rank = fullest_class(report)
    sent = traffic_bars(report, rank, "sent") if rank else None
    bars = class_bars(report, "classes", marks)
    parts = {
        "verdict": join((verdict(report), " ", sections.sentence(report))),
        "problems": sections.problems(report),
        "bars": bars and join((bars, legend([*map(entry_of, drawn_categories(report))], "Categories"))),
        "traffic": sent and rank and join((sent, legend(link_entries(rank), "Link classes"))),
        "time": join(_time(report)), "facts": sections.facts(report), "evidence": sections.evidence(report),
        "assumptions": sections.assumptions(report), "advice": advice_part(report.advice)}
    return {name: str(part or "") for name, part in parts.items()}


def memory_part(report: Report, measured: Measured = NOTHING, *, is_full: bool = False) -> dict[str, str]:
    """Returns memory over the step of the fullest class, by the name of its panel; "" without such memory.

    `measured`: drawn over it. `is_full`: also over time, and by part of the model.
    """
    rank = fullest_class(report)
    if rank is None or not rank.memory:
        return {"memory": ""}
    drawing = memory_figure(report, rank, "memory", is_full=is_full, measured=measured)
    words = ("The line over it is the snapshot: its own window of events over the whole width, on the same bytes."
             if measured.curve else "")
    peak = rank.peak and (f"At the peak {format_bytes(rank.peak.allocated_bytes)} are allocated; with driver, NCCL, "
                          f"libraries and fragmentation the device needs {format_bytes(rank.peak.device_bytes)}.")
    return {"memory": str(join((drawing, *(element("p", one, class_="note") for one in (peak, words) if one))))}


def streams_part(report: Report) -> dict[str, str]:
    """Returns the streams over one step, by the name of their panel; "" for a report without them."""
    return {"streams": str(timeline(report, "streams", "Streams over one step") or "")}


def placement_part(report: Report) -> dict[str, str]:
    """Returns what lies on each rank, by the name of its panel; "" for a report without ranks."""
    return {"placement": str(sections.placement_figure(report, "map") or "")}


def advice_part(advice: tuple[Advice, ...], than_s: float | None = None) -> Markup | None:
    """Returns a list of changes with the effect of each; a button of each has its keys as JSON.

    `than_s`: step of the job as it is, for the share of it that each saves.
    """
    if not advice:
        return None
    cures = [one for one in advice if one.verdict == "fits"]
    others = [one for one in advice if one.verdict != "fits"]
    words = "Each of these helps, but not enough:" if cures else (
        "Nothing that was tried with this framework makes it surely fit; another may cut what it keeps whole: "
        "\u201cfewest GPUs of each framework\u201d below asks them. Closest:")
    fewer = element("p", "More GPUs are counted with all other keys as they are; \u201cfewest GPUs\u201d tries other "
                    "degrees and options too.", class_="note") if any(
                        key.startswith("mesh.dp") for one in cures if "framework" not in one.changes
                        for key in one.changes) else None
    return join((_changes(cures, than_s), fewer, element("p", words, class_="note") if others else None,
                 _changes(others, than_s)))


def _changes(advice: Sequence[Advice], than_s: float | None) -> Markup | None:
    return element("ul", *(_change(one, than_s) for one in advice), class_="changes") if advice else None


def versus_part(reports: Sequence[Report]) -> Markup:
    """Returns two or more jobs side by side: keys that differ, numbers with differences, charts on one scale."""
    return comparison(*reports)


def measured_part(title: str, rows: Sequence[Sequence[str]], notes: Sequence[str], advice: tuple[Advice, ...],
                  differs: Sequence[str] = ()) -> Markup:
    """Returns a table of a measured run beside its simulation, its notes, and what would make it fit.

    `rows`: quantity, measured, simulated, difference and a remark, each as text. `differs`: what the run says of its
    job that this job has otherwise.
    """
    other = element("p", f"Another run than this job, so the numbers are of different work: {'; '.join(differs)}.",
                    class_="caveat") if differs else None
    heads = ("quantity", "measured", "simulated", "difference")
    cells = [(join((what, element("span", told, class_="note"))) if told else what, *numbers)
             for what, *numbers, told in rows]
    below = (element("p", note, class_="note") for note in notes)
    return join((other, table(title, heads, cells, 1), *below, advice_part(advice)))


def _change(advice: Advice, than_s: float | None) -> Markup:
    words = {"fits": "fits", "unsure": "unsure", "oom": "still does not fit"}
    gpus = None if advice.num_gpus is None else f"{advice.num_gpus:,} GPU{'' if advice.num_gpus == 1 else 's'}"
    time = None if advice.step_s is None else f"step {_seconds(advice.step_s)}"
    if time and than_s and advice.step_s:
        time += f" ({advice.step_s / than_s - 1:+.0%})"
    effect = ", ".join(filter(None, (words[advice.verdict], format_bytes(advice.peak_bytes),
                                     _left(advice.headroom_bytes), time, gpus)))
    keys = (code(f"{key}={json.dumps(value)}") for key, value in advice.changes.items())
    button = element("button", "apply", type="button", data_changes=json.dumps(advice.changes))
    return element("li", button, element("span", join(keys, " "), " ", element("span", effect, class_="note")),
                   element("span", advice.warning, class_="note warning") if advice.warning else None)


def _left(num_bytes: int) -> str:
    return f"{format_bytes(abs(num_bytes))} {'left' if num_bytes >= 0 else 'too much'}"


def _seconds(seconds: float) -> str:
    """Text of a time with three digits, zeros at its end too, such as `11.0 s`."""
    number, unit = format_seconds(seconds).split()
    return f"{float(number):#.3g}".rstrip(".") + f" {unit}"


def _time(report: Report) -> Iterator[Markup]:
    """Yields rows of a list: step, throughput, MFU, cost."""
    time = report.time
    if time is None:
        return
    rows = [("step", _seconds(time.step_s)), ("tokens/s per GPU", f"{time.tokens_per_s_per_gpu:,.0f}"),
            ("MFU", f"{time.mfu:.1%}")]
    if time.cost and time.cost.per_million_tokens is not None:
        rows.append(("USD per M tokens", f"{time.cost.per_million_tokens:#,.3g}".rstrip(".")))
    else:
        rows.append(("USD per M tokens", "no list price: give USD per GPU-hour"))
    if time.cost and time.cost.per_run is not None:
        rows.append(("USD of the run", f"{time.cost.per_run:,.4g}"))
    if time.roofline:
        rows.append(("bound by", time.roofline.bound.replace("_", " ")))
    yield from (element("div", element("dt", name), element("dd", value)) for name, value in rows)
