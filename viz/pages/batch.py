"""Section of many scenarios: filters by differing keys, scatters with the Pareto edge, a table that sorts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from simcore.results.report import Report
from simcore.units import format_seconds
from viz.charts.pareto import cost_per_million_tokens, cost_scatter, time_points, time_scatter
from viz.charts.scatter import edge
from viz.layouts.layout_keys import in_order
from viz.markup import Child, Markup, element, printable
from viz.pages.scenario_keys import differing_keys
from viz.pages.tables import bytes_or_dash, signed_bytes
from viz.pages.verdict import verdict_bar, verdict_key

__all__ = ["FIRST_ROWS", "batch", "filter_form", "more_rows", "script_data"]

_MOST_VALUES: Final = 16  # of a key that is a filter
_MOST_KEYS: Final = 9  # that are filters and columns
_MOST_LISTED: Final = 12  # scenarios in the list of the edge
_TOP: Final = 8  # categories and collectives in an opened row
FIRST_ROWS: Final = 100  # rows in view before more are asked for
_MARKUP: Final = re.compile("[<>&\u2028\u2029]")
_SWEPT: Final = re.compile(r"(?:^|,)([a-z_.]+)=")


def batch(reports: Sequence[Report], *, linked: bool) -> Markup:
    """Returns the page's section about many scenarios: filters, scatters with the Pareto edge, a table.

    `linked`: the page has an article for each scenario, to which its row links.
    """
    keys = dict(list(differing_keys(reports, _MOST_VALUES).items())[:_MOST_KEYS])
    verdicts = Counter(verdict_key(report) for report in reports)
    words = ", ".join(f"{count:,} {_WORDS[key][count > 1]}" for key, count in verdicts.items())
    pictures = [p for p in (time_scatter(reports, "edge-time"), cost_scatter(reports, "edge-cost")) if p is not None]
    titles = ("Peak memory against step time", "Peak memory against cost")
    figures = (element("figure", element("figcaption", title), element("div", picture, class_="plot"))
               for title, picture in zip(titles, pictures, strict=False))
    return element(
        "section", element("h2", f"{len(reports):,} scenarios"), element("p", f"{words}.", class_="answer"),
        _filters(keys, verdicts), element("div", *figures, class_="side") if pictures else None, _scatter_key(reports),
        _edge_list(reports), _table(reports, keys, linked=linked), more_rows(),
        script_data(list(map(_opened, reports))), class_="batch", aria_label="Scenarios on this page")


_WORDS: Final = {"fits": ("fits", "fit"), "oom": ("runs out of memory", "run out of memory"),
                 "unsure": ("is unsure", "are unsure"),
                 "illegal": ("is illegal", "are illegal"), "error": ("has no answer", "have no answer"),
                 "none": ("has no verdict", "have no verdict")}
"""Verb of a verdict for one scenario, and for several."""


def _scatter_key(reports: Sequence[Report]) -> Markup | None:
    if not any(report.highest_bytes for report in reports):
        return None
    disc = {"cx": 8, "cy": 8, "r": 4.5}
    shapes = ((element("circle", **disc, class_="point fits"), "fits"),
              (element("circle", **disc, class_="point unsure"), "unsure: measured errors reach across the limit"),
              (element("text", "\u00d7", x=8, y=14, text_anchor="middle", class_="point oom"), "does not fit"),
              (element("circle", **disc, class_="point fits on-edge"),
               "on the Pareto edge: no other that fits has less of both"))
    rows = (element("li", element("svg", shape, width=16, height=16, class_="chart", aria_hidden="true"),
                    element("span", words, class_="label")) for shape, words in shapes)
    return element("ul", *rows, class_="key", aria_label="Key of the scatters")


def _edge_list(reports: Sequence[Report]) -> Markup | None:
    """Returns a list of the scenarios on the edge of memory and time, for users of a keyboard."""
    on_edge = edge(time_points(reports))
    if not on_edge:
        return None
    rows = (element("li", element("a", point.name, href=f"#row-{point.row + 1}", dir="auto"),
                    element("span", f" {format_seconds(point.x)}, {bytes_or_dash(point.num_bytes)}", class_="note"))
            for point in on_edge[:_MOST_LISTED])
    left = len(on_edge) - _MOST_LISTED
    more = element("li", f"and {left:,} more", class_="note") if left > 0 else None
    head = element("summary", f"On the edge of memory and time: {len(on_edge):,} of {len(reports):,}")
    return element("details", head, element("ol", *rows, more), class_="more edge-list")


def _filters(keys: dict[str, list[str]], verdicts: Counter[str]) -> Markup | None:
    groups = {"verdict": list(verdicts)} if len(verdicts) > 1 else {}
    return filter_form(groups | {key: sorted(dict.fromkeys(values), key=in_order) for key, values in keys.items()})


def filter_form(groups: Mapping[str, Sequence[str]], ranges: Iterable[Markup] = ()) -> Markup | None:
    """Returns a form with check boxes for each value of each group, shown by the script alone; None without groups.

    `ranges`: further fields, of numbers.
    """
    if not groups:
        return None
    fields = (element("fieldset", element("legend", name), *(
        element("label", element("input", type="checkbox", name=f"f{place}", value=value),
                element("span", value)) for value in values), class_="choice", data_key=name)
              for place, (name, values) in enumerate(groups.items()))
    count = element("p", element("output", "", class_="count"), " ",
                    element("button", "show all", type="button", class_="reset"), class_="filtered")
    return element("form", *fields, *ranges, count, class_="filters", hidden=True, aria_label="Filters")


def _table(reports: Sequence[Report], keys: dict[str, list[str]], *, linked: bool) -> Markup:
    columns = (("scenario", ""), ("verdict", "number"), ("peak", "number"), ("headroom", "number"),
               ("step", "number"), ("tokens/s per GPU", "number"), ("MFU", "number"), ("USD per M tokens", "number"),
               *((key, "") for key in keys))
    heads = (element("th", element("button", name, element("span", "", class_="arrow", aria_hidden="true"),
                                   type="button"), scope="col", class_=css or None, aria_sort="none")
             for name, css in columns)
    has_verdicts = len({verdict_key(report) for report in reports}) > 1
    rows = (_row(n, report, _name(report.name, n, keys), [verdict_key(report)] * has_verdicts,
                 [values[n] for values in keys.values()], linked=linked) for n, report in enumerate(reports))
    scenarios = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    return element("div", scenarios, class_="scroll tall", role="region", tabindex=0, aria_label="All scenarios")


def more_rows() -> Markup:
    """Returns buttons that show the rows beyond the first 100: a browser takes seconds to lay out thousands of rows."""
    return element("p", element("output", ""), *(element("button", words, type="button", data_more=more)
                                                for words, more in ((f"{FIRST_ROWS} more", FIRST_ROWS), ("all", 0))),
                   class_="later", hidden=True)


def _name(name: str, n: int, keys: Mapping[str, object]) -> str:
    """Returns the name in a row: without the part that a sweep appends, where the columns of keys say the same."""
    base, _, swept = name.partition("[")
    changed = _SWEPT.findall(swept)
    return f"{base} {n + 1}" if changed and set(changed) <= set(keys) else name


def _row(n: int, report: Report, label: str, verdicts: Sequence[str], values: Sequence[str], *, linked: bool) -> Markup:
    time, used = report.time, report.highest_bytes
    title = report.name if label != report.name else None
    name: Child = element("a", label, href=f"#report-{n + 1}", title=title, dir="auto") if linked else element(
        "button", label, type="button", class_="opens", aria_expanded="false", title=title, dir="auto")
    share = used / report.capacity_bytes if used and report.capacity_bytes else None
    cost = cost_per_million_tokens(report)
    cells: list[tuple[Child, float | None]] = [
        (verdict_bar(report), share), (bytes_or_dash(used), used), (signed_bytes(report.headroom_bytes),
                                                                    report.headroom_bytes),
        (format_seconds(time.step_s) if time else "\u2013", time.step_s if time else None),
        (f"{time.tokens_per_s_per_gpu:,.0f}" if time else "\u2013", time.tokens_per_s_per_gpu if time else None),
        (f"{time.mfu:.1%}" if time else "\u2013", time.mfu if time else None),
        (f"{cost:,.3g}" if cost is not None else "\u2013", cost)]
    numbers = (element("td", text, class_="number", data_v="" if value is None else f"{value:.6g}")
               for text, value in cells)
    others = (element("td", value) for value in values)
    return element("tr", element("th", name, scope="row"), *numbers, *others, id=f"row-{n + 1}", data_n=n,
                   class_="late" if n >= FIRST_ROWS else None,
                   data_f=json.dumps([*verdicts, *values], ensure_ascii=False))


def script_data(value: object) -> Markup:
    """Returns as JSON what rows show when they are opened, with every character of markup escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    safe = _MARKUP.sub(lambda match: f"\\u{ord(match[0]):04x}", printable(text))
    return element("script", Markup(safe), type="application/json", class_="opened-rows")


def _opened(report: Report) -> dict[str, Any]:
    """Returns what an opened row shows: problems, peak by category, traffic, parts of the step time."""
    rank = report.peak_rank
    peak = rank.peak if rank else None
    row: dict[str, Any] = {"name": report.name}
    if report.problems:
        row["problems"] = [f"{p.where}: {p.message}{f' [{p.rule}]' if p.rule else ''}" for p in report.problems[:4]]
    if rank and peak:
        sizes = sorted((peak.by_category | peak.outside).items(), key=lambda item: -item[1])
        row["when"] = f"{peak.phase} at {peak.layer or peak.event}, on ranks {', '.join(rank.ranks[:4])}"
        row["peak"] = [[name, bytes_or_dash(size), round(size / max(peak.device_bytes, 1), 4)] for name, size in
                         sizes[:_TOP] if size]
        sent: Counter[str] = Counter()
        for traffic in rank.traffic:
            sent[f"{traffic.collective} {traffic.axis}"] += traffic.wire_bytes
        most = max(sent.values(), default=0) or 1
        row["sent"] = [[name, bytes_or_dash(size), round(size / most, 4)] for name, size in sent.most_common(_TOP)]
    if report.time and report.time.parts:
        row["time"] = [[part, format_seconds(seconds), round(seconds / report.time.step_s, 4)]
                         for part, seconds in report.time.parts.items() if seconds]
    return row
