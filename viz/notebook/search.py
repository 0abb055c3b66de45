"""The card of a search: its Pareto charts, the best layouts, and what became of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simcore.results.found import SearchResult
from simcore.units import format_bytes, format_seconds
from viz.layouts.front import front, front_chart, placed
from viz.layouts.layout_keys import layout_names
from viz.layouts.measure import Measure, pairs_of
from viz.markup import Child, Markup, element, join
from viz.notebook.fragment import fragment
from viz.pages.search import answer_of, counted, refusals
from viz.pages.tables import table

__all__ = ["search_html"]

_MOST_ROWS: Final = 20
_MOST_NAMED: Final = 12


def search_html(result: SearchResult) -> str:
    """Returns the HTML with which a notebook shows a search: Pareto charts with names, the ranking, the counts."""
    names = layout_names(result.ranked)
    figures = (_figure(result, across, upwards, names, f"front-{n}")
               for n, (across, upwards) in enumerate(pairs_of(result) if result.ranked else ()))
    halves = [element("div", part) for part in (counted(result.counts), refusals(result)) if part]
    return fragment(join((
        element("p", result.name, class_="headline", dir="auto"), element("p", answer_of(result), class_="answer"),
        *figures, _ranking(result, names),
        element("details", element("summary", "What became of the layouts"),
                element("div", *halves, class_="halves")))))


def _figure(result: SearchResult, across: Measure, upwards: Measure, names: Sequence[str], identity: str
            ) -> Markup | None:
    shown = placed(result.ranked, across, upwards)
    drawing = front_chart(shown, across, upwards, identity)
    if drawing is None:
        return None
    joined = front(shown, across, upwards)
    rows = [element("li", names[place.row], element("span", f" {upwards.show(place.y)}, {across.show(place.x)}",
                                                    class_="note"), dir="auto") for place in joined[:_MOST_NAMED]]
    left = len(joined) - _MOST_NAMED
    more = element("li", f"and {left:,} more", class_="note") if left > 0 else None
    caption = f"{upwards.words} against {across.words}; large and joined: the Pareto set"
    return element("figure", element("figcaption", f"{caption[0].upper()}{caption[1:]}"),
                   element("div", drawing, class_="plot"), element("ol", *rows, more, class_="front-list"))


def _ranking(result: SearchResult, names: Sequence[str]) -> Markup | None:
    rows = list(_rows(result, names))
    if not rows:
        return None
    columns = ("", "layout", "verdict", "evidence", "peak", "step", "tokens/s per GPU", "USD per M tokens")
    left = f", the first {_MOST_ROWS} of {len(result.ranked):,}" if len(result.ranked) > _MOST_ROWS else ""
    return table(f"Ranking; *: in the Pareto set{left}", columns, rows, 4)


def _rows(result: SearchResult, names: Sequence[str]) -> Iterator[list[Child]]:
    for place, (one, name) in enumerate(zip(result.ranked[:_MOST_ROWS], names, strict=False), 1):
        cost = one.usd_per_million_tokens
        yield [f"{place}{'*' if one.is_pareto else ''}", name, one.verdict, one.evidence, format_bytes(one.peak_bytes),
               format_seconds(one.step_s), f"{one.tokens_per_s_per_gpu:,.0f}",
               "\u2013" if cost is None else f"{cost:,.3g}"]
