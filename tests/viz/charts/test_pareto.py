"""Scenarios by peak memory and step time."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from reports import swept_report
from viz.charts.pareto import time_scatter


def test_the_scatter_draws_every_scenario_with_a_time() -> None:
    reports = [swept_report(n, verdict="oom" if n % 5 == 0 else "fits") for n in range(30)]
    reports.append(swept_report(31, time=None))
    root = ET.fromstring(str(time_scatter(reports, "x")))  # noqa: S314 - written by us
    points = [e for e in root.iter() if "point" in e.get("class", "").split()]
    assert len(points) == 30
    assert {(e.tag, e.text) for e in points if "oom" in e.attrib["class"].split()} == {("text", "\u00d7")}
    assert {e.tag for e in points if "fits" in e.attrib["class"].split()} == {"circle"}
    assert time_scatter([swept_report(1, time=None)], "x") is None
