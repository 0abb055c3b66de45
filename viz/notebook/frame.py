"""The card of a table of results: the columns in which rows differ, bars for memory, a scatter."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from simcore.results.frame import Frame, Value
from simcore.units import format_bytes, format_seconds
from viz.charts.scatter import Point, scatter
from viz.markup import Child, Markup, element, join
from viz.notebook.fragment import fragment

__all__ = ["frame_html"]

_MOST_ROWS: Final = 60
_MOST_PROBLEMS: Final = 5
_MOST_KEYS: Final = 8
_FEWEST_POINTS: Final = 3
_ALWAYS: Final = {
    "scenarios": ("name", "verdict", "device_bytes", "headroom_bytes", "step_s", "tokens_per_s_per_gpu", "mfu",
                  "cost_per_million_tokens_usd"),
    "ranks": ("name", "ranks", "num_ranks", "device_bytes", "allocated_bytes", "at_rest_bytes", "sent_bytes",
              "peak_phase", "peak_layer")}
_WHERE_DIFFERENT: Final = {
    "scenarios": ("framework", "topology", "model", "workload", "method", "pp", "dp_replicate", "dp_shard", "cp", "tp",
                  "ep", "etp"),
    "ranks": ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp", "expert_dp")}
_WORDS: Final = {"device_bytes": "peak", "headroom_bytes": "headroom", "step_s": "step", "mfu": "MFU",
                 "tokens_per_s_per_gpu": "tokens/s per GPU", "cost_per_million_tokens_usd": "USD per M tokens",
                 "allocated_bytes": "allocated", "at_rest_bytes": "at rest", "sent_bytes": "sent in a step",
                 "num_ranks": "alike", "peak_phase": "highest in", "peak_layer": "at"}


def frame_html(frame: Frame) -> str:
    """Returns the HTML with which a notebook shows a table: its first 60 rows, usual and differing columns.

    Below it at most five reasons for missing numbers and, for three and more scenarios that were timed, a scatter of
    peak memory and step time.
    """
    columns = frame.to_dict()
    names = _shown(frame, columns)
    heads = (element("th", _WORDS.get(name, name), scope="col", class_=_css(columns[name])) for name in names)
    rows = (_row(columns, names, n) for n in range(min(len(frame), _MOST_ROWS)))
    content = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    left = f"; the first {_MOST_ROWS}" if len(frame) > _MOST_ROWS else ""
    row = {"scenarios": "scenario", "ranks": "class of ranks"}[frame.kind]
    note = f"a row a {row}, {len(frame):,} rows{left}; {len(names)} of {len(frame.columns)} columns: "
    return fragment(join((
        element("div", content, class_="scroll rows", role="region", tabindex=0, aria_label="Results"),
        element("p", note, element("code", ".to_dict()"), " and ", element("code", ".records"), " have all",
                class_="note"), _problems(columns), _scatter(frame, columns))))


def _shown(frame: Frame, columns: dict[str, list[Value]]) -> list[str]:
    """Returns the columns to show: the usual ones, those that differ, and keys that were swept."""
    usual = [name for name in _ALWAYS[frame.kind] if any(value is not None for value in columns[name])]
    other = [name for name in _WHERE_DIFFERENT[frame.kind] if len(set(columns[name])) > 1]
    swept = [column.name for column in frame.columns if "." in column.name and len(set(columns[column.name])) > 1]
    return [*usual[:1], *other, *swept[:_MOST_KEYS], *usual[1:]]


def _css(values: Sequence[Value]) -> str | None:
    return "number" if any(isinstance(value, int | float) for value in values) else None


def _row(columns: dict[str, list[Value]], names: Sequence[str], n: int) -> Markup:
    cells = (element("td", _cell(columns, name, n), class_=_css(columns[name])) for name in names[1:])
    return element("tr", element("th", _name(str(columns[names[0]][n])), scope="row", dir="auto"), *cells)


def _problems(columns: dict[str, list[Value]]) -> Markup | None:
    """Returns a list of the reasons why rows have no numbers; None where all have."""
    rows_with_problems = zip(columns["name"], columns.get("problems", ()), strict=False)
    reasons = [(name, problem) for name, problem in rows_with_problems if problem is not None]
    items = [element("li", element("strong", str(name), dir="auto"), f" {problem}")
             for name, problem in reasons[:_MOST_PROBLEMS]]
    left = len(reasons) - _MOST_PROBLEMS
    return element("ul", *items, element("li", f"and {left:,} more") if left > 0 else None,
                   class_="problems") if items else None


def _name(name: str) -> Markup:
    """Returns a name in which lines may break where a sweep joined its parts."""
    return join(re.split(r"(?<=[,\[])", name), Markup("<wbr/>"))


def _cell(columns: dict[str, list[Value]], name: str, n: int) -> Child:
    value = columns[name][n]
    if name == "verdict":
        return _verdict(value, columns, n)
    if value is None:
        return "\u2013"
    if name == "mfu" and isinstance(value, float):
        return f"{value:.1%}"
    show = next((show for end, show in _SHOWN.items() if name.endswith(end)), _plain)
    return show(value).replace("-", "\u2212") if isinstance(value, int | float) and value < 0 else show(value)


def _plain(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)


def _number(show: Callable[[float], str]) -> Callable[[Value], str]:
    return lambda value: show(value) if isinstance(value, int | float) else str(value)


_SHOWN: Final[dict[str, Callable[[Value], str]]] = {
    "_bytes": _number(format_bytes), "_s": _number(format_seconds), "tokens_per_s_per_gpu": _number(
        lambda value: f"{value:,.0f}"), "_usd": _number(lambda value: f"{value:,.3g}")}


def _verdict(verdict: Value, columns: dict[str, list[Value]], n: int) -> Markup:
    """Returns the verdict in a word, and a bar of how full the device is."""
    word = {"fits": "fits", "oom": "OOM", "unsure": "unsure"}.get(str(verdict), str(columns["status"][n]))
    css = {"fits": "good", "oom": "bad"}.get(str(verdict), "warn")
    used, capacity = columns["device_bytes"][n], columns["capacity_bytes"][n]
    bar = None
    if isinstance(used, int) and isinstance(capacity, int) and capacity:
        bar = join((_fill(used / capacity), f" {used / capacity:.0%}"))
    return element("span", element("span", word, class_="word"), " ", bar, class_=f"verdict-bar {css}")


def _fill(share: float) -> Markup:
    scale = max(share, 1.0)
    end = f"{100 / scale:.1f}%"
    parts = (element("rect", x="0", y="2", width="100%", height=8, rx=2, class_="room"),
             element("rect", x="0", y="2", width=f"{100 * share / scale:.1f}%", height=8, rx=2, class_="used"),
             element("line", x1=end, x2=end, y1="0", y2="12", class_="end"))
    return element("svg", *parts, class_="fill", width=64, height=12, aria_hidden="true")


def _scatter(frame: Frame, columns: dict[str, list[Value]]) -> Markup | None:
    """Draws peak memory against step time; None with fewer than three scenarios that have both."""
    if frame.kind != "scenarios":
        return None
    points = [Point(n, str(name), step, peak, str(verdict)) for n, (name, step, peak, verdict) in enumerate(zip(
        columns["name"], columns["step_s"], columns["highest_bytes"], columns["verdict"], strict=True))
        if isinstance(step, float) and isinstance(peak, int)]
    if len(points) < _FEWEST_POINTS:
        return None
    capacities = [size for size in columns["capacity_bytes"] if isinstance(size, int)]
    drawing = scatter(points, "Peak memory against step time", "time of a step", format_seconds, capacities, "scatter")
    caption = ("Peak memory against step time; ring: unsure; \u00d7 does not fit; "
               "large: no other that fits has less of both")
    return element("figure", element("figcaption", caption), element("div", drawing, class_="plot"))
