"""Many scenarios: filters by what differs between them, scatters with the Pareto edge, a table that sorts and opens."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from simcore.results.report import Report
from simcore.units import format_seconds
from viz.charts.scatter import Point, edge, scatter
from viz.markup import Child, Markup, element, escape
from viz.pages.scenario_keys import differing
from viz.pages.verdict import optional_bytes, signed_bytes, verdict_bar, verdict_key

__all__ = ["batch", "cost_scatter", "time_scatter"]

_MOST_VALUES: Final = 16
_MOST_KEYS: Final = 9
_MOST_LISTED: Final = 12
_TOP: Final = 8
_FIRST_ROWS: Final = 100
_SWEPT: Final = re.compile(r"(?:^|,)([a-z_.]+)=")


def batch(reports: Sequence[Report], *, linked: bool) -> Markup:
    """The whole section. `linked`: the page has an article for each."""
    keys = dict(list(differing(reports, _MOST_VALUES).items())[:_MOST_KEYS])
    told = Counter(verdict_key(report) for report in reports)
    words = ", ".join(f"{count:,} {_WORDS[key][count > 1]}" for key, count in told.items())
    pictures = [p for p in (time_scatter(reports, "edge-time"), cost_scatter(reports, "edge-cost")) if p is not None]
    titles = ("Peak memory against step time", "Peak memory against cost")
    figures = (element("figure", element("figcaption", title), element("div", picture, class_="plot"))
               for title, picture in zip(titles, pictures, strict=False))
    return element(
        "section", element("h2", f"{len(reports):,} scenarios"), element("p", f"{words}.", class_="answer"),
        _filters(keys, told), element("div", *figures, class_="side") if pictures else None, _scatter_key(reports),
        _edge_list(reports), _table(reports, keys, linked=linked), _later(), _data(reports), class_="batch",
        aria_label="Scenarios on this page")


_WORDS: Final = {"fits": ("fits", "fit"), "oom": ("runs out of memory", "run out of memory"),
                 "illegal": ("is illegal", "are illegal"), "error": ("has no answer", "have no answer"),
                 "none": ("has no verdict", "have no verdict")}
"""Of one scenario, of several."""


def _points(reports: Sequence[Report], values: Sequence[float | None]) -> list[Point]:
    return [Point(n, report.name, value, report.highest_bytes, report.verdict == "fits")
            for n, (report, value) in enumerate(zip(reports, values, strict=True))
            if value is not None and report.highest_bytes is not None]


def _capacities(reports: Sequence[Report]) -> list[int]:
    return [report.capacity_bytes for report in reports if report.capacity_bytes]


def _step(report: Report) -> float | None:
    return report.time.step_s if report.time else None


def _cost(report: Report) -> float | None:
    """USD for a million tokens."""
    return report.time.cost.per_million_tokens if report.time and report.time.cost else None


def time_scatter(reports: Sequence[Report], identity: str) -> Markup | None:
    """Peak memory against step time; None where no time is known."""
    return scatter(_points(reports, [_step(report) for report in reports]), "Peak memory against step time",
                   "time of a step", format_seconds, _capacities(reports), identity)


def cost_scatter(reports: Sequence[Report], identity: str) -> Markup | None:
    """Peak memory against cost; None where no price is known."""
    return scatter(_points(reports, [_cost(report) for report in reports]), "Peak memory against cost",
                   "USD per million tokens", lambda usd: f"{usd:.3g}", _capacities(reports), identity)


def _scatter_key(reports: Sequence[Report]) -> Markup | None:
    if not any(report.highest_bytes for report in reports):
        return None
    disc = {"cx": 8, "cy": 8, "r": 4.5}
    shapes = ((element("circle", **disc, class_="point fits"), "fits"),
              (element("text", "\u00d7", x=8, y=14, text_anchor="middle", class_="point oom"), "does not fit"),
              (element("circle", **disc, class_="point fits on-edge"),
               "on the Pareto edge: no other that fits has less of both"))
    rows = (element("li", element("svg", shape, width=16, height=16, class_="chart", aria_hidden="true"),
                    element("span", words, class_="label")) for shape, words in shapes)
    return element("ul", *rows, class_="key", aria_label="Key of the scatters")


def _edge_list(reports: Sequence[Report]) -> Markup | None:
    """Scenarios on the edge of memory and time, which a keyboard reaches here."""
    found = edge(_points(reports, [_step(report) for report in reports]))
    if not found:
        return None
    rows = (element("li", element("a", point.name, href=f"#row-{point.row + 1}", dir="auto"),
                    element("span", f" {format_seconds(point.x)}, {optional_bytes(point.num_bytes)}", class_="note"))
            for point in found[:_MOST_LISTED])
    left = len(found) - _MOST_LISTED
    more = element("li", f"and {left:,} more", class_="note") if left > 0 else None
    head = element("summary", f"On the edge of memory and time: {len(found):,} of {len(reports):,}")
    return element("details", head, element("ol", *rows, more), class_="more edge-list")


def _filters(keys: dict[str, list[str]], told: Counter[str]) -> Markup | None:
    """Check boxes for each key that differs; shown by the script only."""
    groups = {"verdict": list(told)} if len(told) > 1 else {}
    groups |= {key: sorted(dict.fromkeys(values), key=_in_order) for key, values in keys.items()}
    if not groups:
        return None
    fields = (element("fieldset", element("legend", name), *(
        element("label", element("input", type="checkbox", name=f"f{place}", value=value),
                element("span", value)) for value in values), class_="choice") for place, (name, values) in
              enumerate(groups.items()))
    count = element("p", element("output", "", class_="count"), " ",
                    element("button", "show all", type="button", class_="reset"), class_="filtered")
    return element("form", *fields, count, class_="filters", hidden=True, aria_label="Filters")


def _in_order(value: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


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
    whole = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    return element("div", whole, class_="scroll tall", role="region", tabindex=0, aria_label="All scenarios")


def _later() -> Markup:
    """Rows beyond the first are shown when asked for: a table of thousands takes a browser seconds to lay out."""
    return element("p", element("output", ""), *(element("button", words, type="button", data_more=more)
                                                for words, more in ((f"{_FIRST_ROWS} more", _FIRST_ROWS), ("all", 0))),
                   class_="later", hidden=True)


def _name(name: str, n: int, keys: Mapping[str, object]) -> str:
    """A sweep writes what it changed behind a name; where columns say that, the name is short."""
    base, _, swept = name.partition("[")
    changed = _SWEPT.findall(swept)
    return f"{base} {n + 1}" if changed and set(changed) <= set(keys) else name


def _row(n: int, report: Report, shown: str, verdicts: Sequence[str], values: Sequence[str], *, linked: bool) -> Markup:
    time, used = report.time, report.highest_bytes
    title = report.name if shown != report.name else None
    name: Child = element("a", shown, href=f"#report-{n + 1}", title=title, dir="auto") if linked else element(
        "button", shown, type="button", class_="opens", aria_expanded="false", title=title, dir="auto")
    share = used / report.capacity_bytes if used and report.capacity_bytes else None
    cost = _cost(report)
    cells: list[tuple[Child, float | None]] = [
        (verdict_bar(report), share), (optional_bytes(used), used), (signed_bytes(report.headroom_bytes),
                                                                    report.headroom_bytes),
        (format_seconds(time.step_s) if time else "\u2013", time.step_s if time else None),
        (f"{time.tokens_per_s_per_gpu:,.0f}" if time else "\u2013", time.tokens_per_s_per_gpu if time else None),
        (f"{time.mfu:.1%}" if time else "\u2013", time.mfu if time else None),
        (f"{cost:,.3g}" if cost is not None else "\u2013", cost)]
    numbers = (element("td", told, class_="number", data_v="" if value is None else f"{value:.6g}")
               for told, value in cells)
    others = (element("td", value) for value in values)
    return element("tr", element("th", name, scope="row"), *numbers, *others, id=f"row-{n + 1}", data_n=n,
                   class_="late" if n >= _FIRST_ROWS else None,
                   data_f=json.dumps([*verdicts, *values], ensure_ascii=False))


def _data(reports: Sequence[Report]) -> Markup:
    """What a row shows when it is opened; no sign of markup is left in it."""
    text = json.dumps([_opened(report) for report in reports], ensure_ascii=False, separators=(",", ":"))
    safe = "".join(f"\\u{ord(c):04x}" if c in "<>&\u2028\u2029" else c for c in str(escape_controls(text)))
    return element("script", Markup(safe), type="application/json", id="opened")


def escape_controls(text: str) -> str:
    """Without characters that no page may hold (json has written control characters as escapes already)."""
    return "".join(c if c in "<>&\"'" else escape(c) for c in text)


def _opened(report: Report) -> dict[str, Any]:
    rank = report.peak_rank
    peak = rank.peak if rank else None
    found: dict[str, Any] = {"name": report.name}
    if report.problems:
        found["problems"] = [f"{p.where}: {p.message}{f' [{p.rule}]' if p.rule else ''}" for p in report.problems[:4]]
    if rank and peak:
        sizes = sorted((peak.by_category | peak.outside).items(), key=lambda item: -item[1])
        found["when"] = f"{peak.phase} at {peak.layer or peak.event}, on ranks {', '.join(rank.ranks[:4])}"
        found["peak"] = [[name, optional_bytes(size), round(size / max(peak.device_bytes, 1), 4)] for name, size in
                         sizes[:_TOP] if size]
        sent: Counter[str] = Counter()
        for row in rank.traffic:
            sent[f"{row.collective} {row.axis}"] += row.wire_bytes
        most = max(sent.values(), default=0) or 1
        found["sent"] = [[name, optional_bytes(size), round(size / most, 4)] for name, size in sent.most_common(_TOP)]
    if report.time and report.time.parts:
        found["time"] = [[part, format_seconds(seconds), round(seconds / report.time.step_s, 4)]
                         for part, seconds in report.time.parts.items() if seconds]
    return found
