"""Figures of a search: each Pareto chart with the names of its set beside it, and the parallel axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simcore.results.found import SearchResult
from viz.charts.legend import LegendEntry
from viz.exports.figures import MARGIN, SIZE, WIDTH, Figure, alone, slug
from viz.layouts import front, name_column
from viz.layouts.layout_keys import layout_columns, layout_names
from viz.layouts.measure import Measure, measures_of, pairs_of
from viz.layouts.parallel import axes_of, parallel
from viz.markup import Markup, element

__all__ = ["search_figures"]

_CHART: Final = 520
"""Width of a Pareto chart in pixels; the names are to the right of it."""
_LEFT: Final = _CHART + 40
_MOST_NAMED: Final = 24
_ENTRIES: Final = (LegendEntry("\u25cf fits"), LegendEntry("\u25cb unsure"),
                   LegendEntry("black, joined, named: the Pareto set of these two"))


def search_figures(results: Sequence[SearchResult]) -> Iterator[tuple[str, str]]:
    """Yields (name, SVG text) of the figures of each search that found layouts; names are safe as file names."""
    for number, result in enumerate(results, 1):
        start = f"{number:02}-{slug(result.name)}"
        if not result.ranked:
            continue
        names = layout_names(result.ranked)
        for across, upwards in pairs_of(result):
            if figure := _front(result, across, upwards, names):
                yield f"{start}-{figure.name}", alone(figure)
        axes = axes_of(result.ranked, layout_columns(result.ranked), measures_of(result))
        if len(axes) > 1:
            drawing = parallel(axes, {n for n, one in enumerate(result.ranked) if one.is_pareto}, "a")
            title = f"Keys and results of {len(result.ranked):,} layouts \u00b7 {result.name}"
            yield f"{start}-axes", alone(Figure("axes", title, drawing, (LegendEntry("black: the Pareto set"),)))


def _front(result: SearchResult, across: Measure, upwards: Measure, names: Sequence[str]) -> Figure | None:
    """Draws a Pareto chart with at most 24 names beside it; None without layouts that have both values."""
    shown = front.placed(result.ranked, across, upwards)
    chart = front.front_chart(shown, across, upwards, "p")
    if chart is None:
        return None
    joined = front.front(shown, across, upwards)
    named = [joined[round(n * (len(joined) - 1) / (_MOST_NAMED - 1))] for n in range(_MOST_NAMED)] if (
        len(joined) > _MOST_NAMED) else joined
    width = WIDTH - MARGIN - 24 - _LEFT
    texts = [f"{names[place.row]}: {upwards.show(place.y)}, {across.show(place.x)}" for place in named]
    height = max(front.HEIGHT, round(name_column.room_for(texts, width)) + 2)
    points = [name_column.Named(place.right * _CHART, place.top, text)
              for place, text in zip(named, texts, strict=True)]
    inner = Markup(SIZE.sub(f'x="0" y="0" width="{_CHART}" height="{front.HEIGHT}"', chart, count=1))
    drawing = element("svg", name_column.name_column(points, _LEFT, width, 0, height), inner, class_="open",
                      width="100%", height=height)
    left_out = f", {len(named)} of the {len(joined):,} in the Pareto set named" if len(named) < len(joined) else ""
    title = f"{upwards.words} against {across.words}, {len(shown):,} layouts{left_out} \u00b7 {result.name}"
    return Figure(f"pareto-{upwards.name}-{across.name}", f"{title[0].upper()}{title[1:]}", drawing, _ENTRIES)
