"""Each picture of a page as an SVG file by itself, for papers and slides, and as PNG.

A file brings its own textures and rules, on light paper, with every colour written out: readers other than browsers
know no variables. PNG is made by resvg (the extra `figures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from simcore.results.report import RankReport, Report
from viz.charts.bars import short
from viz.charts.lanes import lane_looks, lanes, names
from viz.charts.legend import Look, drawn_key
from viz.charts.memory import chart
from viz.charts.peak_owners import holder_bars
from viz.charts.placement import component_looks, placement
from viz.charts.stack import Clock, has_time
from viz.charts.traffic import link_looks, traffic_bars
from viz.markup import Markup, element
from viz.pages.batch import cost_scatter, time_scatter
from viz.pages.ranks import by_part, class_detail
from viz.pages.tables import category_looks
from viz.palette import texture_definitions
from viz.stylesheet import stylesheet

__all__ = ["WIDTH", "as_png", "figures", "letters"]

WIDTH: Final = 1000
_MARGIN: Final = 64
_NAMES: Final = 120
_TITLE: Final = 50
_VARIABLE: Final = re.compile(r"var\(--([a-z0-9-]+)\)")
_SIZE: Final = re.compile(r'(?<= )width="100%" height="(\d+)"')
_FONT: Final = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
_FAMILIES: Final = ("Liberation Sans", "Arial", "Helvetica", "Segoe UI", "Roboto", "Noto Sans", "DejaVu Sans",
                    "Cantarell", "Ubuntu", "FreeSans")
"""That resvg is offered, which knows no generic family of its own."""
_LETTER: Final = (f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"><text y="30" font-family="{_FONT}">'
                  "{}</text></svg>")
_OWN: Final = "text { font-size: 12.5px; } .figure-title { font-size: 16px; font-weight: 700; }"
_LARGEST: Final = 16
"""Classes of ranks that are drawn of a scenario, and scenarios of which more than a scatter is drawn."""


@dataclass(frozen=True)
class _Figure:
    """A drawing with what it is called, and the key that explains its looks."""

    name: str
    title: str
    drawn: Markup
    looks: Sequence[Look] = ()
    beside: Markup | None = None


def figures(reports: Sequence[Report]) -> Iterator[tuple[str, str]]:
    """(name, text) of every picture; names are safe as names of files."""
    if len(reports) > 1:
        scatters = (("pareto-time", "Peak memory against step time", time_scatter(reports, "t")),
                    ("pareto-cost", "Peak memory against cost", cost_scatter(reports, "c")))
        for name, title, drawn in scatters:
            if drawn is not None:
                yield name, _alone(_Figure(name, f"{title}, {len(reports):,} scenarios", drawn, _SCATTER_LOOKS))
    if len(reports) <= _LARGEST:
        for number, report in enumerate(reports, 1):
            start = f"{number:02}-{_slug(report.name)}"
            for one in _of_report(report):
                yield f"{start}-{one.name}", _alone(replace(one, title=f"{one.title} \u00b7 {report.name}"))


_SCATTER_LOOKS: Final = (Look("\u25cf fits"), Look("\u00d7 does not fit"),
                         Look("black: on the Pareto edge of those that fit"))


def _of_report(report: Report) -> Iterator[_Figure]:
    mapped = placement(report, "m")
    if mapped is not None:
        yield _Figure("placement", "What lies on each rank", mapped, component_looks(report))
    drawn = lanes(report, "s")
    if drawn is not None:
        yield _Figure("streams", "Streams over one step", drawn, lane_looks(report), names(report))
    for number, rank in enumerate(report.ranks[:_LARGEST]):
        yield from _of_rank(report, rank, number)


def _of_rank(report: Report, rank: RankReport, number: int) -> Iterator[_Figure]:
    detail, of = class_detail(report, rank), f"ranks {short(', '.join(rank.ranks), 40)}"
    if rank.memory is not None and rank.memory.event_index:
        yield _memory(report, rank, "issue", f"memory-{number}", of)
        if has_time(rank.memory):
            yield _memory(report, rank, "time", f"memory-{number}-time", of)
    if detail is not None and detail.by_part is not None:
        yield _memory(report, by_part(rank, detail), "issue", f"memory-{number}-parts", of)
    opened = holder_bars(rank, detail, "h") if detail else None
    if opened is not None:
        yield _Figure(f"peak-{number}", f"Who is there at the peak of {of}", opened, category_looks(rank))
    sent = traffic_bars(report, rank, "w")
    if sent is not None:
        yield _Figure(f"traffic-{number}", f"What leaves a rank of {of} in one step", sent, link_looks())


def _memory(report: Report, rank: RankReport, clock: Clock, name: str, of: str) -> _Figure:
    kinds = report.detail.layers if report.detail else {}
    drawn = chart(rank, report.capacity_bytes, clock, "i", kinds=kinds)
    return _Figure(name, f"Allocated memory over one step, {of}", drawn, category_looks(rank))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=]+", "-", name)[:80].strip("-.") or "scenario"


def _alone(figure: _Figure) -> str:
    """A drawing of the page under its title, in a frame, with its key below."""
    match = _SIZE.search(figure.drawn)
    height = int(match[1]) if match else 400
    left = _MARGIN if figure.beside is None else _NAMES
    frame = f'x="{left}" y="{_TITLE}" width="{WIDTH - left - 24}" height="{height}"'
    drawn = Markup(_SIZE.sub(frame, figure.drawn, count=1))
    beside = None if figure.beside is None else Markup(
        _SIZE.sub(f'x="24" y="{_TITLE}" width="{left - 32}" height="{height}"', figure.beside, count=1))
    looks, below = drawn_key(figure.looks, WIDTH - 48)
    total = _TITLE + height + 18 + below + 10
    parts = (element("rect", width="100%", height="100%", fill=_tokens()["card"]),
             element("text", short(figure.title, 110), x="24", y="30", class_="figure-title"), beside, drawn,
             element("svg", looks, x="24", y=_TITLE + height + 18, class_="open"))
    whole = element("svg", element("style", Markup(_rules())), texture_definitions(), *parts,
                    xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=total, viewBox=f"0 0 {WIDTH} {total}",
                    font_family=_FONT)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_VARIABLE.sub(lambda m: _tokens()[m[1]], whole)}\n'


def _tokens() -> dict[str, str]:
    """Colours on light paper, by name: the first that the sheet gives each."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"--([a-z0-9-]+): ([^;]+);", stylesheet()):
        found.setdefault(name, value)
    return found


def _rules() -> str:
    """Rules for what is inside a drawing; those of media and of the page around it are left out."""
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}|:root \{[^}]*\}|/\*.*?\*/", "", stylesheet())
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", plain)
    kept = (f"{selector.strip()}{{{body.strip()}}}" for selector, body in rules
            if re.match(r"[a-z]*\.", selector.strip()) and ":" not in selector)
    text = "\n".join((_OWN, *kept)).replace("font-weight: 650", "font-weight: 700")  # resvg draws 650 as 400
    return text.replace("&", "&amp;").replace("<", "&lt;")


def as_png(svg: str) -> bytes:
    """At twice the size; without a font of `_FAMILIES` it has no letters. ImportError without the library."""
    return _drawn(svg, letters())


@cache
def letters() -> str:
    """The first family of this machine that letters are drawn in; none: "". ImportError without the library."""
    without = _drawn(_LETTER.format(""), "")
    return next((family for family in _FAMILIES if _drawn(_LETTER.format("M"), family) != without), "")


def _drawn(svg: str, family: str) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2, font_family=family or None,
                                       sans_serif_family=family or None))
