"""Each chart as a figure for papers and slides: an SVG file, or a PNG image made from it.

A file contains its own textures and rules, for light paper, with the value of every colour: readers other than browsers
do not know CSS variables. PNG images are rendered by resvg (the extra `figures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from simcore.results.report import RankReport, Report
from viz.charts.bars import shortened
from viz.charts.lanes import lane_entries, lane_names, lanes
from viz.charts.legend import LegendEntry, legend_drawing
from viz.charts.memory import memory_chart
from viz.charts.memory_legend import category_entries
from viz.charts.pareto import cost_scatter, time_scatter
from viz.charts.peak_owners import peak_owner_bars
from viz.charts.placement import component_entries, placement
from viz.charts.rank_class import by_part, class_detail
from viz.charts.stack import Clock, has_time
from viz.charts.traffic import link_entries, traffic_bars
from viz.markup import Markup, element
from viz.palette import texture_definitions
from viz.stylesheet import stylesheet

__all__ = ["MARGIN", "SIZE", "WIDTH", "Figure", "alone", "as_png", "figures", "letters", "slug"]

WIDTH: Final = 1000
MARGIN: Final = 64
_NAMES: Final = 120
_TITLE: Final = 50
_VARIABLE: Final = re.compile(r"var\(--([a-z0-9-]+)\)")
SIZE: Final = re.compile(r'(?<= )width="100%" height="(\d+)"')
"""Width and height of a drawing, which a figure replaces by its place."""
_FONT: Final = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
_FAMILIES: Final = ("Liberation Sans", "Arial", "Helvetica", "Segoe UI", "Roboto", "Noto Sans", "DejaVu Sans",
                    "Cantarell", "Ubuntu", "FreeSans")
"""Font families that resvg may use; it knows no generic family."""
_LETTER: Final = (f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"><text y="30" font-family="{_FONT}">'
                  "{}</text></svg>")
_OWN: Final = "text { font-size: 12.5px; } .figure-title { font-size: 16px; font-weight: 700; }"
_LARGEST: Final = 16
"""Most classes of ranks that are drawn for a scenario, and most scenarios that are drawn one by one."""


@dataclass(frozen=True)
class Figure:
    """A drawing with its name, its title, its legend, and a drawing to the left of it (the names of lanes)."""

    name: str
    title: str
    drawing: Markup
    entries: Sequence[LegendEntry] = ()
    lane_names: Markup | None = None


def figures(reports: Sequence[Report]) -> Iterator[tuple[str, str]]:
    """Yields (name, SVG text) of every figure; names are safe as file names and have no suffix.

    Several reports have scatters; up to 16 reports also have the charts of each, with its first 16 classes of ranks.
    """
    if len(reports) > 1:
        scatters = (("pareto-time", "Peak memory against step time", time_scatter(reports, "t")),
                    ("pareto-cost", "Peak memory against cost", cost_scatter(reports, "c")))
        for name, title, drawing in scatters:
            if drawing is not None:
                yield name, alone(Figure(name, f"{title}, {len(reports):,} scenarios", drawing, _SCATTER_ENTRIES))
    if len(reports) <= _LARGEST:
        for number, report in enumerate(reports, 1):
            start = f"{number:02}-{slug(report.name)}"
            for figure in _of_report(report):
                yield f"{start}-{figure.name}", alone(replace(figure, title=f"{figure.title} \u00b7 {report.name}"))


_SCATTER_ENTRIES: Final = (LegendEntry("\u25cf fits"), LegendEntry("\u25cb unsure"), LegendEntry("\u00d7 does not fit"),
                           LegendEntry("black: on the Pareto edge of those that fit"))


def _of_report(report: Report) -> Iterator[Figure]:
    placement_map = placement(report, "m")
    if placement_map is not None:
        yield Figure("placement", "What lies on each rank", placement_map, component_entries(report))
    streams = lanes(report, "s")
    if streams is not None:
        yield Figure("streams", "Streams over one step", streams, lane_entries(report), lane_names(report))
    for number, rank in enumerate(report.ranks[:_LARGEST]):
        yield from _of_rank(report, rank, number)


def _of_rank(report: Report, rank: RankReport, number: int) -> Iterator[Figure]:
    detail, name = class_detail(report, rank), f"ranks {shortened(', '.join(rank.ranks), 40)}"
    if rank.memory is not None and rank.memory.event_index:
        yield _memory(report, rank, "issue", f"memory-{number}", name)
        if has_time(rank.memory):
            yield _memory(report, rank, "time", f"memory-{number}-time", name)
    if detail is not None and detail.by_part is not None:
        yield _memory(report, by_part(rank, detail), "issue", f"memory-{number}-parts", name)
    owners = peak_owner_bars(rank, detail, "h") if detail else None
    if owners is not None:
        yield Figure(f"peak-{number}", f"Who is there at the peak of {name}", owners, category_entries(rank))
    traffic = traffic_bars(report, rank, "w")
    if traffic is not None:
        yield Figure(f"traffic-{number}", f"What leaves a rank of {name} in one step", traffic, link_entries(rank))


def _memory(report: Report, rank: RankReport, clock: Clock, name: str, ranks: str) -> Figure:
    kinds = report.detail.layers if report.detail else {}
    drawing = memory_chart(rank, report.capacity_bytes, clock, "i", kinds=kinds)
    return Figure(name, f"Allocated memory over one step, {ranks}", drawing, category_entries(rank))


def slug(name: str) -> str:
    """Returns a name that is safe as a part of a file name, at most 80 characters."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", name)[:80].strip("-.") or "scenario"


def alone(figure: Figure) -> str:
    """Returns the SVG text of a figure: its title, the drawing below, and its legend below that."""
    match = SIZE.search(figure.drawing)
    height = int(match[1]) if match else 400
    left = MARGIN if figure.lane_names is None else _NAMES
    frame = f'x="{left}" y="{_TITLE}" width="{WIDTH - left - 24}" height="{height}"'
    drawing = Markup(SIZE.sub(frame, figure.drawing, count=1))
    names = None if figure.lane_names is None else Markup(
        SIZE.sub(f'x="24" y="{_TITLE}" width="{left - 32}" height="{height}"', figure.lane_names, count=1))
    legend, legend_height = legend_drawing(figure.entries, WIDTH - 48)
    total = _TITLE + height + 18 + legend_height + 10
    parts = (element("rect", width="100%", height="100%", fill=_tokens()["card"]),
             element("text", shortened(figure.title, 110), x="24", y="30", class_="figure-title"), names, drawing,
             element("svg", legend, x="24", y=_TITLE + height + 18, class_="open"))
    svg = element("svg", element("style", Markup(_rules())), texture_definitions(), *parts,
                    xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=total, viewBox=f"0 0 {WIDTH} {total}",
                    font_family=_FONT)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_VARIABLE.sub(lambda m: _tokens()[m[1]], svg)}\n'


def _tokens() -> dict[str, str]:
    """Returns the colours on light paper by name: the first value that the style sheet gives each variable."""
    colours: dict[str, str] = {}
    for name, value in re.findall(r"--([a-z0-9-]+): ([^;]+);", stylesheet()):
        colours.setdefault(name, value)
    return colours


def _rules() -> str:
    """Returns the rules for classes inside a drawing, without media rules and rules of the page."""
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}|:root \{[^}]*\}|/\*.*?\*/", "", stylesheet())
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", plain)
    kept = (f"{selector.strip()}{{{body.strip()}}}" for selector, body in rules
            if re.match(r"[a-z]*\.", selector.strip()) and ":" not in selector)
    text = "\n".join((_OWN, *kept)).replace("font-weight: 650", "font-weight: 700")  # resvg draws 650 as 400
    return text.replace("&", "&amp;").replace("<", "&lt;")


def as_png(svg: str) -> bytes:
    """Returns the bytes of a PNG image of an SVG text, of twice its size. ImportError: resvg is missing.

    It has no text without a font of `_FAMILIES`.
    """
    return _rendered(svg, letters())


@cache
def letters() -> str:
    """Returns the first font family that resvg can draw on this machine; "" if there is none.

    ImportError: resvg is missing.
    """
    without = _rendered(_LETTER.format(""), "")
    return next((family for family in _FAMILIES if _rendered(_LETTER.format("M"), family) != without), "")


def _rendered(svg: str, family: str) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2, font_family=family or None,
                                       sans_serif_family=family or None))
