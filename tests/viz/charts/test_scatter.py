"""Scatters: which points are on the Pareto edge."""

from __future__ import annotations

import random

from viz.charts.scatter import Point, edge

WORDS = ("fits", "fits", "unsure", "oom", None)


def test_the_edge_is_of_those_that_nothing_beats() -> None:
    seeded = random.Random(7)
    points = [Point(n, str(n), seeded.randint(1, 20), seeded.randint(1, 20), seeded.choice(WORDS))
              for n in range(200)]
    on_edge = edge(points)
    fits = [p for p in points if p.verdict == "fits"]
    for point in fits:
        beaten = any((p.x <= point.x and p.num_bytes <= point.num_bytes) and (p.x, p.num_bytes) != (
            point.x, point.num_bytes) for p in fits)
        first = not any((p.x, p.num_bytes) == (point.x, point.num_bytes) and p.row < point.row for p in fits)
        assert (point in on_edge) == (not beaten and first)
    assert [p.x for p in on_edge] == sorted(p.x for p in on_edge)
