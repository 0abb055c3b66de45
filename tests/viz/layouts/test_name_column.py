"""Names beside a chart: none lies on another, however long they are."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from viz.layouts.name_column import LETTER, LINE, Named, name_column, room_for, spread

LONG = "a_word_without_any_place_to_break_" * 9


@pytest.mark.parametrize("seed", range(20))
def test_intervals_do_not_overlap_and_stay_inside(seed: int) -> None:
    drawn = random.Random(seed)
    sizes = [drawn.uniform(5, 40) for _ in range(12)]
    high = sum(sizes) + drawn.uniform(0, 80)
    wanted = sorted(drawn.uniform(-20, high + 20) for _ in sizes)
    starts = spread(wanted, sizes, 0, high)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    assert starts[0] >= -1e-9
    assert ends[-1] <= high + 1e-9
    assert all(end <= start + 1e-9 for end, start in zip(ends, starts[1:], strict=False))


def test_intervals_with_room_are_where_they_are_wanted() -> None:
    assert spread([10, 50, 90], [20, 20, 20], 0, 200) == [10, 50, 90]


@pytest.mark.parametrize("name", ["tp 8", LONG, "GPU " * 80, "\u6a21\u578b" * 60])
def test_lines_of_names_are_apart_and_not_wider_than_the_column(name: str) -> None:
    height = room_for([name] * 8, 300)
    points = [Named(100, 40 + n, name) for n in range(8)]  # all at nearly the same place
    drawing = name_column(points, 500, 300, 0, height)
    lines = re.findall(r'<text x="500" y="([\d.]+)"[^>]*>([^<]*)<', drawing)
    heights = [float(y) for y, _ in lines]
    assert len(lines) >= 8
    assert all(after - before >= LINE - 0.01 for before, after in pairwise(heights))
    assert heights[0] - 11 >= 0
    assert heights[-1] <= height
    assert all(len(text) * LETTER * (2 if text > "\u3000" else 1) <= 300 for _, text in lines)


def test_the_order_of_names_is_that_of_the_points() -> None:
    drawing = name_column([Named(0, 90, "low"), Named(0, 10, "high")], 50, 100, 0, 200)
    assert drawing.index(">high<") < drawing.index(">low<")
