"""Parallel axes: a line for each layout, axes of keys and results, places of values."""

from __future__ import annotations

import re

from found import found
from viz.layouts.layout_keys import layout_columns
from viz.layouts.measure import measures_of
from viz.layouts.parallel import axes_of, key_groups, parallel


def test_each_layout_is_a_line_through_every_axis() -> None:
    result = found(30)
    columns, measures = layout_columns(result.ranked), measures_of(result)
    axes = axes_of(result.ranked, columns, measures)
    assert len(axes) == len(key_groups(result.ranked, columns)) + len(measures)
    text = str(parallel(axes, {3}, "i"))
    lines = dict(re.findall(r'<path d="([^"]*)" data-row="(\d+)"', text))
    assert sorted(map(int, lines.values())) == list(range(30))
    assert {line.count("L") + 1 for line in lines} == {len(axes)}
    assert text.rindex("thread-line") == text.index("thread-line best")  # over the others


def test_equal_values_are_at_one_place_and_larger_ones_higher() -> None:
    result = found(30)
    axes = {axis.words: axis for axis in axes_of(result.ranked, layout_columns(result.ranked), measures_of(result))}
    by_degree: dict[int, set[float]] = {}
    for one, up in zip(result.ranked, axes["tp"].ups, strict=True):
        by_degree.setdefault(one.keys["mesh.tp"], set()).add(up)
    assert all(len(ups) == 1 for ups in by_degree.values())
    ups = [next(iter(by_degree[degree])) for degree in sorted(by_degree)]
    assert ups == sorted(ups)
    peaks = axes["peak memory in GiB"].ups
    assert sorted(peaks) == [up for _, up in sorted(zip([one.peak_bytes for one in result.ranked], peaks, strict=True))]


def test_a_key_with_too_many_values_has_no_axis() -> None:
    result = found(30)
    columns = {"many": [str(n) for n in range(30)], "few": ["a", "b", "c"] * 10}
    assert "many" not in key_groups(result.ranked, columns)
    assert key_groups(result.ranked, columns)["few"][0] == ["a", "b", "c"]


def test_names_of_axes_and_labels_beside_them_are_apart_in_a_figure() -> None:
    result = found(60, text=" of a very long name", objectives=("gpus", "tokens", "peak"))
    axes = axes_of(result.ranked, layout_columns(result.ranked), measures_of(result))
    assert len(axes) >= 16
    text, width = str(parallel(axes, set(), "i")), 912  # pixels of a figure
    boxes = []
    heads = re.findall(r'<text x="(-?[\d.]+)" y="([\d.]+)" text-anchor="(\w+)" class="axis-name"><title>[^<]*</title>'
                       r'([^<]*)<', text)
    places = [float(x) * width / 100 for x in re.findall(r'x="([\d.]+)%" y="0" width="1"', text)]
    assert len(places) == len(heads) == len(axes)
    for place, (x, y, anchor, name) in zip(places, heads, strict=True):
        size = 7.4 * len(name)
        left = place + float(x) - (size if anchor == "end" else size / 2)
        boxes.append((left, left + size, float(y)))
    assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[n + 1:]
                if a[2] == b[2] and a[0] < b[1] and b[0] < a[1]]
    shown = re.findall(r'class="tick"[^>]*data-value[^>]*>(?:<title>[^<]*</title>)?([^<]*)<', text)
    assert max(map(len, shown)) * 6 < places[1] - places[0]
