"""Section of a search: Pareto charts, parallel axes, filters, the ranked table, and why other layouts are not in it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from simcore.results.evidence import COUNTED
from simcore.results.found import FoundLayout, SearchCounts, SearchResult
from simcore.units import format_bytes, format_seconds
from viz.layouts.front import front, front_chart, placed
from viz.layouts.layout_keys import layout_columns, layout_names
from viz.layouts.measure import MEASURES, Measure, measures_of, pairs_of
from viz.layouts.parallel import axes_of, key_groups, parallel
from viz.markup import Child, Markup, element, join
from viz.pages.batch import FIRST_ROWS, filter_form, more_rows, script_data
from viz.pages.tables import code, signed_bytes, table
from viz.pages.verdict import verdict_share

__all__ = ["answer_of", "counted", "refusals", "search_section"]

_MOST_LISTED: Final = 24
"""Layouts of a Pareto set that are listed."""
_FEW_AXES: Final = 7


def search_section(result: SearchResult, identity: str) -> Markup:
    """Returns the page's section about one search. `identity`: begin of its ids, unique on the page."""
    head = element("h2", result.name, dir="auto"), element("p", answer_of(result), class_="answer"), _untimed(result)
    if not result.ranked:
        return element("section", *head, counted(result.counts), refusals(result), class_="found",
                       aria_label=f"Search {result.name}")
    names, columns, measures = layout_names(result.ranked), layout_columns(result.ranked), measures_of(result)
    groups = key_groups(result.ranked, columns)
    figures = (_figure(result, pair, names, f"{identity}-{n}") for n, pair in enumerate(pairs_of(result)))
    return element(
        "section", *head, *figures, element("output", "", class_="told note"),
        _parallel(result.ranked, columns, measures, identity), filter_form(
            {name: values for name, (values, _) in groups.items()}, map(_range, measures)),
        _table(result, names, columns, groups, measures, identity), more_rows(),
        element("div", counted(result.counts), refusals(result), class_="pair"), script_data(_opened(result, names)),
        class_="batch found", aria_label=f"Search {result.name}")


# ---- words -----------------------------------------------------------------------------------------------------------
def answer_of(result: SearchResult) -> str:
    """Returns the answer of a search in one sentence."""
    counts, names = result.counts, [MEASURES[name].words if name in MEASURES else name for name in result.objectives]
    if not result.ranked:
        return f"No layout fits, of {counts.candidates:,}."
    return (f"{counts.candidates:,} layouts, ranked by {names[0]}: {counts.ranked:,} fit and have a time, "
            f"{len(result.pareto):,} of them in the Pareto set of {' and '.join(names)}.")


def _untimed(result: SearchResult) -> Markup | None:
    if not result.counts.slower:
        return None
    return element("p", f"{result.counts.slower:,} more fit and are not on this page: a proven bound of their step "
                   "is longer than the answer needs, so they were not timed. ", code("--exhaustive"), " times them.",
                   class_="note")


def counted(counts: SearchCounts) -> Markup:
    """Returns an HTML table of what became of all layouts of a search."""
    rows = ((counts.refused, "refused by a rule"), (counts.at_rest, "too large at rest, by a proven bound"),
            (counts.oom, "out of memory"), (counts.unsure, "unsure, which counts as not fitting"),
            (counts.excluded, "excluded by a condition on results"),
            (counts.slower, "fit, slower by a proven bound"),
            (counts.alike, "the same as another: a key has no effect there"), (counts.ranked, "fit and timed"))
    cells: list[list[Child]] = [[words, f"{number:,}"] for number, words in rows if number]
    cells.append([element("strong", "all"), element("strong", f"{counts.candidates:,}")])
    return table("What became of the layouts", ("", "layouts"), cells, 1)


def refusals(result: SearchResult) -> Markup | None:
    """Returns an HTML table of the rules that refused layouts, most layouts first; None without any."""
    rows: list[list[Child]] = [[f"{one.count:,}", one.status, join((one.message.removeprefix("not yet: "), *(
        (" ", element("span", f"[{one.rule}]", class_="note")) if one.rule != one.message and "#" not in one.rule
        else ())))] for one in result.refused]
    return table("Refused by these rules", ("layouts", "", "first message"), rows, 9) if rows else None


# ---- pictures --------------------------------------------------------------------------------------------------------
def _figure(result: SearchResult, pair: tuple[Measure, Measure], names: Sequence[str], identity: str) -> Markup | None:
    """Draws a Pareto chart with the list of its set beside it; layouts without one of the values are left out."""
    across, upwards = pair
    shown = placed(result.ranked, across, upwards)
    drawing = front_chart(shown, across, upwards, f"{identity}-front")
    if drawing is None:
        return None
    section = identity.partition("-")[0]
    rows = [element("li", element("a", names[place.row], href=f"#{section}-row-{place.row + 1}", dir="auto"),
                    element("span", f" {upwards.show(place.y)}, {across.show(place.x)}", class_="note"),
                    data_row=place.row, hidden=n >= _MOST_LISTED)
            for n, place in enumerate(front(shown, across, upwards))]
    listed = element("div", element("p", "Pareto set of what is shown", class_="legend-head"),
                     element("ol", *rows, class_="front-list"), class_="legend")
    caption = element("figcaption", f"Pareto chart: {upwards.words} against {across.words}",
                      element("span", "drag to select, click a layout", class_="note drag-note", hidden=True))
    return element("figure", caption, element("div", element("div", drawing, class_="plot"), listed,
                                              class_="with-legend"), class_="card front")


def _parallel(layouts: Sequence[FoundLayout], columns: Mapping[str, list[str]], measures: Sequence[Measure],
              identity: str) -> Markup | None:
    axes = axes_of(layouts, columns, measures)
    if len(axes) < 2:
        return None
    drawing = parallel(axes, {n for n, one in enumerate(layouts) if one.is_pareto}, f"{identity}-axes")
    caption = element("figcaption", "Keys and results of each layout; strong: the Pareto set",
                      element("span", "drag along an axis to select, click it to take all", class_="note drag-note",
                              hidden=True))
    inner = element("div", drawing, class_="axes" if len(axes) > _FEW_AXES else "axes few")
    return element("figure", caption, element("div", inner, class_="scroll", role="region", tabindex=0,
                                              aria_label="Parallel axes"), class_="card")


# ---- filters and table -----------------------------------------------------------------------------------------------
def _range(measure: Measure) -> Markup:
    fields = (element("label", words, element("input", type="number", step="any", class_="bound",
                                              aria_label=f"{measure.words} {words}")) for words in ("from", "to"))
    return element("fieldset", element("legend", measure.words), *fields, class_="choice range",
                   data_measure=measure.name)


_HEADS: Final = (("layout", ""), ("place", "number"), ("verdict", "number"), ("peak", "number"), ("headroom", "number"),
                 ("step", "number"), ("tokens/s per GPU", "number"), ("MFU", "number"), ("USD per M tokens", "number"),
                 ("evidence", ""), ("Pareto set", ""))


def _table(result: SearchResult, names: Sequence[str], columns: Mapping[str, list[str]],
           groups: Mapping[str, tuple[list[str], list[str]]], measures: Sequence[Measure], identity: str) -> Markup:
    heads = (element("th", element("button", name, element("span", "", class_="arrow", aria_hidden="true"),
                                   type="button"), scope="col", class_=css or None,
                     aria_sort="ascending" if name == "place" else "none")
             for name, css in (*_HEADS, *((name, "") for name in columns)))
    rows = (_row(n, one, names[n], [texts[n] for texts in columns.values()], identity,
                 filters=json.dumps([texts[n] for _, texts in groups.values()], ensure_ascii=False),
                 numbers=json.dumps([measure.value(one) for measure in measures]))
            for n, one in enumerate(result.ranked))
    layouts = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    return element("div", layouts, class_="scroll tall", role="region", tabindex=0, aria_label="All layouts")


def _row(n: int, one: FoundLayout, name: str, texts: Iterable[str], identity: str, *, filters: str, numbers: str
         ) -> Markup:
    button = element("button", name, type="button", class_="opens", aria_expanded="false", dir="auto")
    cost = one.usd_per_million_tokens
    cells: list[tuple[Child, float | None]] = [
        (f"{n + 1:,}", n + 1), (verdict_share(one.peak_bytes, one.peak_bytes + one.headroom_bytes, one.verdict), None),
        (format_bytes(one.peak_bytes), one.peak_bytes), (signed_bytes(one.headroom_bytes), one.headroom_bytes),
        (format_seconds(one.step_s), one.step_s), (f"{one.tokens_per_s_per_gpu:,.0f}", one.tokens_per_s_per_gpu),
        (f"{one.mfu:.1%}", one.mfu), ("\u2013" if cost is None else f"{cost:,.3g}", cost)]
    share = one.peak_bytes / max(one.peak_bytes + one.headroom_bytes, 1)
    sorted_by = [value if place != 1 else share for place, (_, value) in enumerate(cells)]
    shown = (element("td", text, class_="number", data_v="" if value is None else f"{value:.9g}")
             for (text, _), value in zip(cells, sorted_by, strict=True))
    others = (element("td", text) for text in (one.evidence, "yes" if one.is_pareto else "no", *texts))
    return element("tr", element("th", button, scope="row"), *shown, *others, id=f"{identity}-row-{n + 1}", data_n=n,
                   class_="late" if n >= FIRST_ROWS else None, data_f=filters, data_m=numbers)


# ---- opened rows -----------------------------------------------------------------------------------------------------
def _opened(result: SearchResult, names: Sequence[str]) -> dict[str, object]:
    """Returns what an opened row shows: facts, and the command as indices of its arguments, which many share."""
    arguments: dict[str, int] = {}
    rows = []
    for n, (one, name) in enumerate(zip(result.ranked, names, strict=True)):
        parts = _settings(result, one)
        rows.append({"name": name, "facts": [[words, text] for words, text in _facts(result, one, n)],
                     "command": [arguments.setdefault(part, len(arguments)) for part in parts]})
    words = {name: measure.words.removesuffix(" in GiB") for name, measure in MEASURES.items()}
    path = shlex.quote(result.path) if result.path else ""
    return {"rows": rows, "arguments": list(arguments), "words": words, "path": path}


def _settings(result: SearchResult, one: FoundLayout) -> list[str]:
    """Returns the arguments that make a layout, quoted for a shell, each `--set` with its value."""
    _, *texts = result.arguments(one)
    return [f"--set {shlex.quote(text)}" for text in texts[1::2]]


def _facts(result: SearchResult, one: FoundLayout, n: int) -> Iterator[tuple[str, str]]:
    best = result.ranked[0]
    capacity = one.peak_bytes + one.headroom_bytes
    share = one.peak_bytes / max(capacity, 1)
    yield "verdict", f"{one.verdict}, {share:.1%} of the {format_bytes(capacity)} that may be filled"
    yield "place", f"{n + 1:,} of {len(result.ranked):,}{', in the Pareto set' if one.is_pareto else ''}"
    for measure in MEASURES.values():
        value, first = measure.value(one), measure.value(best)
        if value is None:
            continue
        change = f" ({(value / first - 1) * 100:+.1f}% against the first)".replace("-", "\u2212") if (
            first and value != first) else ""
        yield measure.words.removesuffix(" in GiB"), f"{measure.show(value)}{change}"
    yield "MFU", f"{one.mfu:.1%}"
    yield "evidence", COUNTED[one.evidence]
