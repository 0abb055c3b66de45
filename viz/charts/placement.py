"""The placement map: the ranks as a grid, a row for each node or a part of it, with the bytes of each component.

A cell is a rank. Its bar is the memory of the device: the components at rest, then what is added at the peak. Ranks of
one class have one letter. With more than 128 ranks a cell is a run of ranks of one class; with more than 128 runs it
is the first run of each class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from simcore.results.detail import AxisDigit, Detail
from simcore.results.report import RankReport, Report
from simcore.units import format_bytes
from viz.charts.legend import LegendEntry, entry_of
from viz.charts.rank_class import class_letter
from viz.charts.scale import percent
from viz.markup import Markup, element, number
from viz.palette import swatch

__all__ = ["MAX_CELLS", "component_entries", "components", "members", "peers", "placement"]

MAX_CELLS: Final = 128
_WIDEST: Final = 12
_HEAD, _GAP = 18, 10
_FAR: Final = 1.6
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@dataclass(frozen=True)
class _Cell:
    """A rank or a run of ranks. `first`: its first rank; `words`: its label; `number`: the number of its class."""

    first: int
    words: str
    number: int


def members(text: str) -> range:
    """Returns the ranks of a text such as `"0-128:64"`: 0, 64, 128. Text of another form: an empty range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return range(0)
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return range(first, last + 1, step)


def placement(report: Report, identity: str) -> Markup | None:
    """Draws the ranks as a grid, each with a bar of its bytes at rest by component, then the rest of its peak.

    At most 128 cells: of more ranks a cell is a run of ranks of one class, of more than 128 runs the first run of each
    class. None without ranks. `identity`: begin of the ids in it, unique on the page.
    """
    cells = sorted(_cells(report), key=lambda cell: cell.first)[:MAX_CELLS]
    if not cells:
        return None
    detail, world = report.detail, sum(rank.num_ranks for rank in report.ranks)
    is_ranks = world <= MAX_CELLS
    columns = _columns(detail.ranks_per_node if detail and is_ranks else 8, len(cells))
    num_rows = -(-len(cells) // columns)
    height = 96 if num_rows <= 2 else 64 if num_rows <= 6 else 46
    head = _HEAD if is_ranks and detail is not None and world > detail.ranks_per_node else 0
    boxes = [_cell(report, cell, n, columns, height, head) for n, cell in enumerate(cells)]
    heads = _heads(detail, len(cells), columns, height) if head and detail else ()
    title = f"{world:,} ranks, what lies on each by component"
    return element(
        "svg", element("title", title, id=f"{identity}-title"), *heads, *boxes, class_="chart map", role="group",
        width="100%", height=num_rows * (height + _GAP + head), aria_labelledby=f"{identity}-title",
        data_axes=json.dumps([[a.name, a.size, a.stride] for a in detail.axes] if detail and is_ranks else []),
        data_node=detail.ranks_per_node if detail else 0)


def _cells(report: Report) -> Iterator[_Cell]:
    world = sum(rank.num_ranks for rank in report.ranks)
    num_runs = sum(len(rank.ranks) for rank in report.ranks)
    for place, rank in enumerate(report.ranks):
        for text in rank.ranks if num_runs <= MAX_CELLS else rank.ranks[:1]:
            runs = members(text)
            if world <= MAX_CELLS:
                yield from (_Cell(member, str(member), place) for member in runs)
            elif len(runs):
                yield _Cell(runs.start, text, place)


def _columns(per_node: int, count: int) -> int:
    """Returns the most cells in a row, at most 12, whose number divides the ranks of a node."""
    if count <= per_node:
        per_node = max(count, 4)
    return next(n for n in range(min(per_node, _WIDEST), 0, -1) if per_node % n == 0)


def _heads(detail: Detail, count: int, columns: int, height: int) -> Iterator[Markup]:
    for row in range(-(-count // columns)):
        first = row * columns
        words = f"node {first // detail.ranks_per_node}" if first % detail.ranks_per_node == 0 else ""
        stage = next((f" \u00b7 stage {_at(axis, first)}" for axis in detail.axes if axis.name == "pp"
                      and axis.stride % columns == 0), "")
        yield element("text", words + stage, x="0", y=row * (height + _GAP + _HEAD) + 13, class_="tick")


def _at(axis: AxisDigit, rank: int) -> int:
    return rank // axis.stride % axis.size


def _cell(report: Report, cell: _Cell, place: int, columns: int, height: int, head: int) -> Markup:
    row, column = divmod(place, columns)
    rank = report.ranks[cell.number]
    peak = format_bytes(rank.peak.device_bytes if rank.peak else rank.at_rest_bytes()) if len(cell.words) < 4 else ""
    top = row * (height + _GAP + head) + head
    inner = (element("rect", x="0", y="0", width="100%", height=height, rx=5, class_="cell-box"),
             element("text", cell.words, x="6", y=16, class_="cell-name"),
             element("text", peak, x="50%", y=16, text_anchor="middle", class_="cell-peak wide"),
             element("text", class_letter(cell.number), x="100%", dx=-6, y=16, text_anchor="end", class_="cell-class"),
             element("svg", *_fill(report, rank), x="4%", y=26, width="92%", height=height - 34, class_="cell-fill"))
    mark = element("path", d=f"M6 {number(height - 30)}h14", class_="peer-mark")
    return element("svg", element("title", _words(report, cell)), *inner, mark, x=percent(column / columns + 0.003),
                   y=top, width=percent(1 / columns - 0.006), height=height, class_="cell", role="button",
                   tabindex=0 if not place else -1, aria_label=_words(report, cell), data_rank=cell.first,
                   data_class=cell.number)


def components(rank: RankReport) -> list[tuple[str, int]]:
    """Returns (component, bytes at rest) on a rank, largest first.

    Bytes are those of weights, gradients and optimizer states together.
    """
    sizes = {name: c.params_bytes + c.grads_bytes + c.optimizer_bytes for name, c in rank.at_rest.items()}
    return sorted(((name, size) for name, size in sizes.items() if size), key=lambda item: (-item[1], item[0]))


def scale_bytes(report: Report) -> int:
    """Returns the bytes that a whole bar of the placement map stands for.

    The device's capacity, or the fullest rank's peak where that is more or the capacity far larger.
    """
    most = max(max(rank.peak.device_bytes if rank.peak else 0, rank.at_rest_bytes(), 1) for rank in report.ranks)
    capacity = report.capacity_bytes or 0
    return max(most, capacity) if capacity <= _FAR * most else most


def _fill(report: Report, rank: RankReport) -> Iterator[Markup]:
    """Draws the bar of a device, as high as its frame; what the peak adds to the memory at rest is one part."""
    peak = rank.peak.device_bytes if rank.peak else 0
    at_rest, bar_bytes = components(rank), scale_bytes(report)
    yield element("rect", x="0", y="0", width="100%", height="100%", class_="track")
    at = 0
    parts = [*((name, size, swatch(name).css_class, swatch(name).fill) for name, size in at_rest),
             ("besides at the peak", peak - sum(size for _, size in at_rest), "besides", None)]
    for name, size, css, fill in parts:
        if size > 0:
            yield element("rect", element("title", f"{name}: {format_bytes(size)}"), x=percent(at / bar_bytes), y="0",
                          width=percent(size / bar_bytes), height="100%", class_=css, fill=fill)
            at += size
    if report.capacity_bytes and report.capacity_bytes <= bar_bytes:
        x = percent(report.capacity_bytes / bar_bytes)
        yield element("line", x1=x, x2=x, y1="-3%", y2="103%", class_="end")


def _words(report: Report, cell: _Cell) -> str:
    rank, detail = report.ranks[cell.number], report.detail
    single = cell.words == str(cell.first)
    places = [f"{axis.name} {_at(axis, cell.first)}" for axis in detail.axes] if detail and single else []
    peak = f"; peak {format_bytes(rank.peak.device_bytes)} of the device" if rank.peak else ""
    return (f"{'Rank' if single else 'Ranks'} {cell.words}{': ' if places else ''}{', '.join(places)}; class "
            f"{class_letter(cell.number)}; {format_bytes(rank.at_rest_bytes())} at rest{peak}")


def component_entries(report: Report) -> list[LegendEntry]:
    """Returns legend entries of the placement map: components, largest first, the rest of the peak, a bar's bytes.

    A component's note is its most bytes at rest on any rank.
    """
    sizes: dict[str, int] = {}
    for rank in report.ranks:
        for name, size in components(rank):
            sizes[name] = max(size, sizes.get(name, 0))
    entries = [entry_of(name, f"up to {format_bytes(sizes[name])}") for name in sorted(sizes, key=lambda n: -sizes[n])]
    scale = LegendEntry(f"A whole bar is {format_bytes(scale_bytes(report))}.")
    return [*entries, LegendEntry("besides at the peak", "besides"), scale]


def peers(report: Report, identity: str) -> Markup | None:
    """Returns radio buttons that choose a mesh axis, on which the map marks the group of a chosen rank.

    Only the script shows them. Returns None without axes, and where cells are not single ranks. `identity`: begin of
    their name, unique on the page.
    """
    axes = report.detail.axes if report.detail else ()
    if not axes or sum(rank.num_ranks for rank in report.ranks) > MAX_CELLS:
        return None
    choices = [("", "none"), *((axis.name, f"{axis.name} {axis.size}") for axis in axes)]
    buttons = (element("label", element("input", type="radio", name=f"{identity}-peers", value=value,
                                        checked=not value), element("span", words)) for value, words in choices)
    return element("fieldset", element("legend", "mark its group on"), *buttons, class_="choice peers", hidden=True)
