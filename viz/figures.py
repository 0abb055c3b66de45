"""Each picture of a page as an SVG file by itself, for papers and slides, and as PNG.

A file brings its own textures and rules, on light paper, with every colour written out: readers other than browsers
know no variables. PNG is made by resvg (the extra `figures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

from simcore.report import Report
from viz.batch import cost_scatter, time_scatter
from viz.holders import holder_bars
from viz.lanes import lanes, names
from viz.markup import Markup, element
from viz.memory import chart
from viz.palette import style_rules, texture_definitions
from viz.placement import placement
from viz.ranks import by_part, class_detail
from viz.stack import has_time
from viz.wires import traffic_bars

__all__ = ["WIDTH", "as_png", "figures"]

WIDTH: Final = 1000
_MARGIN: Final = 48
_NAMES: Final = 110
_VARIABLE: Final = re.compile(r"var\(--([a-z0-9-]+)\)")
_SIZE: Final = re.compile(r'(?<= )width="100%" height="(\d+)"')
_FONT: Final = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
_LARGEST: Final = 16
"""Classes of ranks that are drawn of a scenario, and scenarios of which more than a scatter is drawn."""


def figures(reports: Sequence[Report]) -> Iterator[tuple[str, str]]:
    """(name, text) of every picture; names are safe as names of files."""
    if len(reports) > 1:
        for name, drawn in (("pareto-time", time_scatter(reports, "t")), ("pareto-cost", cost_scatter(reports, "c"))):
            if drawn is not None:
                yield name, _alone(drawn)
    if len(reports) <= _LARGEST:
        for number, report in enumerate(reports, 1):
            start = f"{number:02}-{_slug(report.name)}"
            yield from ((f"{start}-{name}", text) for name, text in _of_report(report))


def _of_report(report: Report) -> Iterator[tuple[str, str]]:
    mapped = placement(report, "m")
    if mapped is not None:
        yield "placement", _alone(mapped)
    drawn = lanes(report, "s")
    if drawn is not None:
        yield "streams", _alone(drawn, names(report))
    for number, rank in enumerate(report.ranks[:_LARGEST]):
        if rank.memory is not None and rank.memory.event_index:
            clock = "time" if has_time(rank.memory) else "issue"
            yield f"memory-{number}", _alone(chart(rank, report.capacity_bytes, "issue", "i"))
            yield f"memory-{number}-{clock}", _alone(chart(rank, report.capacity_bytes, "time", "t"))
        detail = class_detail(report, rank)
        if detail is not None and detail.by_part is not None:
            stacked = chart(by_part(rank, detail), report.capacity_bytes, "issue", "p", kinds=report.detail.layers
                            if report.detail else {}, stacked_by="part")
            yield f"memory-{number}-parts", _alone(stacked)
        opened = holder_bars(rank, detail, "h") if detail else None
        sent = traffic_bars(report, rank, "w")
        yield from ((f"{name}-{number}", _alone(one)) for name, one in (("peak", opened), ("traffic", sent))
                    if one is not None)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=]+", "-", name)[:80].strip("-.") or "scenario"


def _alone(drawn: Markup, beside: Markup | None = None) -> str:
    """A drawing of the page, in a frame with a margin; `beside`: what stands to its left."""
    match = _SIZE.search(drawn)
    height = int(match[1]) if match else 400
    left = _NAMES if beside is not None else _MARGIN
    inner = Markup(_SIZE.sub(f'x="{left}" y="16" width="{WIDTH - left - 16}" height="{height}"', drawn, count=1))
    named = None if beside is None else Markup(_SIZE.sub(f'x="16" y="16" width="{left - 24}" height="{height}"', beside,
                                                         count=1))
    paper = element("rect", width="100%", height="100%", fill=_tokens()["card"])
    whole = element("svg", element("style", Markup(_rules())), texture_definitions(), paper, named, inner,
                    xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=height + 32,
                    viewBox=f"0 0 {WIDTH} {height + 32}", font_family=_FONT)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_VARIABLE.sub(lambda m: _tokens()[m[1]], whole)}\n'


def _sheet() -> str:
    return style_rules() + files("viz").joinpath("style.css").read_text(encoding="utf-8")


def _tokens() -> dict[str, str]:
    """Colours on light paper, by name: the first that the sheet gives each."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"--([a-z0-9-]+): ([^;]+);", _sheet()):
        found.setdefault(name, value)
    return found


def _rules() -> str:
    """Rules for what is inside a drawing; those of media and of the page around it are left out."""
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}|:root \{[^}]*\}|/\*.*?\*/", "", _sheet())
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", plain)
    kept = (f"{selector.strip()}{{{body.strip()}}}" for selector, body in rules
            if selector.strip().startswith(".") and ":" not in selector)
    return "\n".join(("text { font-size: 12.5px; }", *kept)).replace("&", "&amp;").replace("<", "&lt;")


def as_png(svg: str) -> bytes:
    """At twice the size. ImportError without the library."""
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2, font_family="Liberation Sans"))
