"""The memory chart: what is drawn is what the series says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from reports import GIB, small_rank, small_series
from simcore.results.report import RankReport
from viz.charts.memory import memory_chart, text_alternative
from viz.charts.scale import BOTTOM, TOP
from viz.charts.stack import edges, phase_runs, totals

CAPACITY = 40 * GIB


def drawn(rank: RankReport | None = None, capacity: int | None = CAPACITY, clock: str = "issue") -> ET.Element:
    return ET.fromstring(memory_chart(rank or small_rank(), capacity, "time" if clock == "time" else "issue", "r1"))  # noqa: S314


def with_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


def number(element: ET.Element, attribute: str) -> float:
    return float(element.attrib[attribute].rstrip("%"))


def height_at(path: str, x: float) -> float:
    """Returns the height in pixels of a closed path of H and V steps at the position `x`."""
    total = 0.0
    for part in path.split("M")[1:]:
        start, *steps = re.findall(r"[\d.]+ [\d.]+|[HV][\d.]+", part)
        at, y = (float(value) for value in start.split())
        levels = []
        for step in steps:
            if step[0] == "V":
                y = float(step[1:])
                continue
            end = float(step[1:])
            if min(at, end) < x < max(at, end):
                levels.append(y)
            at = end
        assert len(levels) in (0, 2)
        total += abs(levels[0] - levels[1]) if levels else 0.0
    return total


_ROUNDED = 0.11
"""Tolerance in pixels: both edges of a band are drawn to a tenth of a pixel."""


@pytest.mark.parametrize("clock", ["issue", "time"])
def test_the_drawn_layers_are_as_thick_as_their_bytes(clock: str) -> None:
    series, root = small_series(), drawn(clock=clock)
    x = edges(series, "time" if clock == "time" else "issue")
    pixels_a_byte = (BOTTOM - TOP) / (1.05 * CAPACITY)
    layers = {e.attrib["data-category"]: e.attrib["d"] for e in with_class(root, "layer")}
    seen = 0
    for i, total in enumerate(totals(series)):
        if x[i + 1] == x[i]:
            continue
        middle = 1000 * ((x[i] + x[i + 1]) / 2 - x[0]) / (x[-1] - x[0])
        heights = {name: height_at(path, middle) for name, path in layers.items()}
        assert sum(heights.values()) == pytest.approx(total * pixels_a_byte, abs=_ROUNDED * len(heights))
        for name, values in zip(series.categories, series.values, strict=True):
            assert heights[name] == pytest.approx(values[i] * pixels_a_byte, abs=_ROUNDED)
        seen += 1
    assert seen >= 4


def test_the_peak_is_marked_where_the_series_is_highest() -> None:
    root = drawn()
    mark = with_class(root, "peak-mark")[0]
    assert int(mark.attrib["data-bytes"]) == max(totals(small_series())) == 26 * GIB
    assert number(mark, "cx") == pytest.approx(100 * 45 / 61, abs=0.01)
    assert number(mark, "cy") == pytest.approx(BOTTOM - (BOTTOM - TOP) * 26 / (40 * 1.05), abs=0.01)


def test_the_peak_is_named_with_bytes_phase_event_and_layer() -> None:
    words = " ".join(drawn().itertext())
    for part in ("peak 26.00 GiB, backward", "bwd:pre_backward_end:root", "model.layers.3", "device 29.00 GiB"):
        assert part in words


def test_a_long_event_loses_its_middle_only() -> None:
    event = "bwd:pre_backward_end:model.layers." + "9" * 80 + ".tail"
    words = [e.text or "" for group in with_class(drawn(small_rank(event=event)), "peak-words") for e in group]
    assert [w for w in words if "\u2026" in w and w.startswith("bwd:pre") and w.endswith(".tail")]
    assert max(map(len, words)) <= 56


def test_the_capacity_is_a_line_on_the_scale_of_the_bytes() -> None:
    line = with_class(drawn(), "capacity")[0]
    assert number(line, "y1") == number(line, "y2") == pytest.approx(TOP + (BOTTOM - TOP) * (1 - 1 / 1.05), abs=0.01)
    assert "capacity 40.00 GiB" in "".join(drawn().itertext())


def test_a_capacity_far_above_is_drawn_at_the_edge_and_says_so() -> None:
    root = drawn(capacity=400 * GIB)
    assert number(with_class(root, "capacity")[0], "y1") == TOP
    assert "above this scale" in "".join(root.itertext())


def test_no_capacity_no_line() -> None:
    assert not with_class(drawn(capacity=None), "capacity")


def test_phase_bands_cover_the_axis_once_and_are_named() -> None:
    strips = with_class(drawn(), "strip")
    assert ["".join(e.itertext()) for e in strips] == ["forward", "backward", "optimizer"]
    assert sum(number(e, "width") for e in strips) == pytest.approx(100, abs=0.02)
    assert [(r.first, r.end) for r in phase_runs(small_series())] == [(0, 2), (2, 5), (5, 6)]


def test_the_chart_can_be_told_in_words() -> None:
    root = drawn()
    title, description = text_alternative(small_rank(), CAPACITY, "issue")
    assert root.attrib["role"] == "img"
    labels = {e.attrib["id"]: e.text for e in root if e.tag in ("title", "desc")}
    assert labels == {root.attrib["aria-labelledby"]: title, root.attrib["aria-describedby"]: description}
    assert "26.00 GiB allocated, phase backward" in description
    assert "activation 9.00 GiB, sharded_param 8.00 GiB, backward_temp 5.00 GiB" in description


def test_a_category_that_is_not_known_is_drawn_and_escaped() -> None:
    name = 'new"><script>alert(1)</script>'
    series = small_series(categories=("opt_state", "activation", "sharded_param", name))
    assert name in {e.attrib["data-category"] for e in with_class(drawn(small_rank(series)), "layer")}


def test_one_sample_is_enough() -> None:
    series = small_series(event_index=(7,), time_s=(0.0,), phases=("forward",), values=((GIB,), (0,), (GIB,), (0,)))
    assert len(with_class(drawn(small_rank(series)), "layer")) == 2


def test_memory_that_is_always_zero_can_be_drawn() -> None:
    series = small_series(values=((0,) * 6,) * 4)
    assert not with_class(drawn(small_rank(series, device_bytes=0), capacity=None), "layer")


def test_no_series_is_refused() -> None:
    with pytest.raises(ValueError, match="no memory series"):
        memory_chart(small_rank().model_copy(update={"memory": None}), CAPACITY, "issue", "r1")
