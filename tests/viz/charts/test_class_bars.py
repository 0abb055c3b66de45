"""Bars of the classes of ranks: one scale, the end of the device, the band of measured runs, measured marks."""

from __future__ import annotations

import re
from typing import Any

from reports import a_rank, a_report
from simcore.units import GIB
from viz.charts.class_bars import Mark, class_bars, drawn_categories
from viz.markup import Markup


def drawn(*marks: Mark, **changes: Any) -> Markup:
    chart = class_bars(a_report(**changes), "bars", marks)
    assert chart is not None
    return chart


def test_the_fullest_class_fills_its_share_of_the_scale() -> None:
    report = a_report(ranks=(a_rank("a", "0", 40), a_rank("b", "1-7", 20)), capacity_bytes=80 * GIB)
    chart = class_bars(report, "bars")
    assert chart is not None
    assert "class A: 40.00 GiB; class B: 20.00 GiB" in chart
    assert "40.00 GiB (50%)" in chart
    assert "80.00 GiB usable" in chart
    end = re.search(r'<line x1="([\d.]+)%" x2="[\d.]+%" y1="\d+" y2="\d+" class="end"', chart)
    assert end
    assert abs(float(end[1]) - 100 / 1.04) < 0.01


def test_without_peaks_nothing_is_drawn() -> None:
    report = a_report(ranks=())
    assert class_bars(report, "bars") is None
    assert drawn_categories(report) == []


def test_a_measured_mark_beyond_the_device_is_on_the_scale() -> None:
    chart = drawn(Mark("peak <reserved>", 200 * GIB), capacity_bytes=80 * GIB)
    assert "measured: peak &lt;reserved&gt; 200.00 GiB" in chart
    assert all(float(x) <= 100 for x in re.findall(r'x1="([\d.]+)%"', chart))


def test_of_many_classes_the_fullest_are_drawn() -> None:
    ranks = tuple(a_rank(str(n), str(n), 1 + n) for n in range(30))
    assert drawn(ranks=ranks).count('class="class-row"') == 12
    assert "class AD: 30.00 GiB" in drawn(ranks=ranks)
