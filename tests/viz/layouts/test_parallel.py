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
