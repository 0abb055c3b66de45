"""Parallel axes of a search: a line for each layout through its keys and its results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.results.found import FoundLayout
from viz.charts.bars import shortened
from viz.charts.scale import percent
from viz.charts.value_axis import ValueAxis
from viz.layouts.layout_keys import in_order
from viz.layouts.measure import Measure
from viz.markup import Markup, element

__all__ = ["HEIGHT", "Axis", "axes_of", "key_axis", "key_groups", "measure_axis", "parallel"]

TOP: Final = 64
BOTTOM: Final = TOP + 250
HEIGHT: Final = BOTTOM + 22
_EDGE: Final = 0.045
"""Share of the width outside the first and the last axis."""
_MOST_VALUES: Final = 16
"""Values of a key that is a filter and has an axis."""
_MOST_KEYS: Final = 12
_MOST_MARKS: Final = 14
_ROOM: Final = 118
"""Characters of labels that fit side by side across the narrowest drawing."""
_HEADS: Final = 3
"""Rows in which the names of axes stand."""


@dataclass(frozen=True)
class Axis:
    """One vertical axis: its words, the place of each layout (0 to 1 from below), and marks (place, text, value).

    `data`: for the script, the name of a measure with low, high and 1 for logarithmic; "" for a key.
    """

    words: str
    ups: tuple[float, ...]
    marks: tuple[tuple[float, str, str], ...]
    data: str = ""


def key_axis(name: str, texts: Sequence[str], values: Sequence[str]) -> Axis:
    """Returns the axis of a key. `texts`: of each layout; `values`: all texts from below upwards."""
    places = {value: (n + 0.5) / len(values) for n, value in enumerate(values)}
    every = max(1, -(-len(values) // _MOST_MARKS))
    marks = tuple((places[value], value if n % every == 0 else "", value) for n, value in enumerate(values))
    return Axis(name, tuple(places[text] for text in texts), marks)


def measure_axis(measure: Measure, values: Sequence[float]) -> Axis:
    """Returns the axis of a measure. `values`: of each layout."""
    axis = ValueAxis(values)
    marks = tuple((axis.share(mark), measure.tick(mark), "") for mark in axis.marks())
    data = f"{measure.name} {axis.low!r} {axis.high!r} {int(axis.is_log)}"
    return Axis(measure.words, tuple(axis.share(value) for value in values), marks, data)


def key_groups(layouts: Sequence[FoundLayout], columns: Mapping[str, list[str]]
               ) -> dict[str, tuple[list[str], list[str]]]:
    """Returns (values in order, text of each layout) of each key that is a filter and has an axis."""
    kept = [(name, texts) for name, texts in columns.items() if len(set(texts)) <= _MOST_VALUES]
    more: dict[str, list[str]] = {
            "verdict": [one.verdict for one in layouts], "evidence": [one.evidence for one in layouts],
            "Pareto set": ["yes" if one.is_pareto else "no" for one in layouts]}
    differing = [(name, texts) for name, texts in more.items() if len(set(texts)) > 1]
    return {name: (sorted(set(texts), key=in_order), texts) for name, texts in (*kept[:_MOST_KEYS], *differing)}


def axes_of(layouts: Sequence[FoundLayout], columns: Mapping[str, list[str]], measures: Sequence[Measure]
            ) -> list[Axis]:
    """Returns the axes of a search: keys, then measures, of which every layout has a value."""
    axes = [key_axis(name, texts, values) for name, (values, texts) in key_groups(layouts, columns).items()]
    for measure in measures:
        values = [value for one in layouts if (value := measure.value(one)) is not None]
        axes.append(measure_axis(measure, values))
    return axes


def parallel(axes: Sequence[Axis], marked: Collection[int], identity: str) -> Markup:
    """Draws a line for each layout through all axes, as one `<svg>`.

    `marked`: indices of layouts that are drawn strong and over the others. `identity`: begin of the ids in it.
    """
    rights = [_EDGE + (1 - 2 * _EDGE) * n / max(len(axes) - 1, 1) for n in range(len(axes))]
    num = len(axes[0].ups) if axes else 0
    order = sorted(range(num), key=lambda row: row in marked)
    lines = (element("path", d=_line(axes, rights, row), data_row=row,
                     class_="thread-line best" if row in marked else "thread-line") for row in order)
    words = f"{num:,} layouts, a line each; across {', '.join(axis.words for axis in axes)}"
    return element(
        "svg", element("title", "Keys and results of each layout", id=f"{identity}-title"),
        element("desc", words, id=f"{identity}-desc"),
        element("svg", *lines, y="0", width="100%", height=HEIGHT, viewBox=f"0 0 1000 {HEIGHT}",
                preserveAspectRatio="none", class_="threads"),
        *(_axis(axis, right, n, len(axes))
          for n, (axis, right) in enumerate(zip(axes, rights, strict=True))),
        class_="chart parallel", role="img", width="100%", height=HEIGHT, aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-desc")


def _top(up: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * up


def _line(axes: Sequence[Axis], rights: Sequence[float], row: int) -> str:
    return "M" + "L".join(f"{1000 * right:.0f} {_top(axis.ups[row]):.0f}"
                          for axis, right in zip(axes, rights, strict=True))


def _axis(axis: Axis, right: float, n: int, num_axes: int) -> Markup:
    is_last = n == num_axes - 1
    parts = [*_marks(axis, max(5, _ROOM // num_axes)),
             element("rect", x=-7, y=TOP, width=14, height=0, class_="taken", visibility="hidden"),
             element("rect", x=-22, y=TOP - 4, width=44, height=BOTTOM - TOP + 8, class_="drag")]
    name = shortened(axis.words.removesuffix(" in GiB").replace("USD per million tokens", "USD per M tokens"), 16)
    head = element("text", element("title", axis.words), name, x=44 if is_last else 0, y=TOP - 14 - 16 * (n % _HEADS),
                   text_anchor="end" if is_last else "middle", class_="axis-name")
    return element("svg", element("line", x1="0", x2="0", y1=TOP, y2=BOTTOM, class_="base"), head, *parts,
                   x=percent(right), y="0", width=1, height=HEIGHT, class_="open axis", data_axis=axis.data or None,
                   data_key=None if axis.data else axis.words)


def _marks(axis: Axis, most: int) -> Iterator[Markup]:
    for up, text, value in axis.marks:
        yield element("line", x1=-3, x2="3", y1=_top(up), y2=_top(up), class_="base")
        full = element("title", text) if len(text) > most else None
        yield element("text", full, shortened(text, most), x=7, y=_top(up) + 4, class_="tick", data_at=f"{up:.4f}",
                      data_value=value or None)
