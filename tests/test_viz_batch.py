"""Batches: what filters offer, the Pareto edge, pages of a thousand scenarios."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from simcore.results.report import Report
from simcore.results.time import Cost
from test_viz_page import EVIL, GIB, a_report, parsed
from viz.charts.pareto import time_scatter
from viz.charts.scatter import Point, edge
from viz.pages.batch import batch
from viz.pages.page import render
from viz.pages.scenario_keys import differing_keys, flat_keys


def scenario(n: int, **changes: Any) -> Report:
    base = a_report(f"s[mesh.tp={n}]", **changes)
    time = base.time.model_copy(update={"step_s": 0.1 + n % 7 / 10, "cost": Cost(per_million_tokens=0.1 + n % 5)}) if (
        base.time) else None
    rank = base.ranks[0]
    peak = rank.peak.model_copy(update={"device_bytes": (10 + n % 11) * GIB}) if rank.peak else None
    return base.model_copy(update={
        "time": time, "ranks": (rank.model_copy(update={"peak": peak, "memory": None}),),
        "scenario": {"name": f"s{n}", "mesh": {"tp": n % 4, "pp": 1}, "training": {"seq_len": 1024 * (n % 3)},
                     "framework": "fsdp2"}})


def test_only_what_differs_can_be_filtered_by_and_axes_come_first() -> None:
    reports = [scenario(n) for n in range(12)]
    assert list(differing_keys(reports)) == ["mesh.tp", "training.seq_len"]
    assert differing_keys(reports, most=3) == {"training.seq_len": ["0", "1024", "2048"] * 4}


def test_scenarios_are_flat_text() -> None:
    found = flat_keys({"name": "x", "a": {"b": None, "c": {}, "d": [1, "two"]}, "e": True, "f": 2.5})
    assert found == {"a.b": "\u2013", "a.c": "\u2013", "a.d": "1, two", "e": "true", "f": "2.5"}


def test_the_verdicts_of_a_batch_are_sentences() -> None:
    fit, refused = scenario(1), scenario(2, status="illegal", verdict=None)
    assert "2 fit, 1 is illegal." in batch([fit, fit, refused], linked=False)
    assert "1 fits, 2 are illegal." in batch([fit, refused, refused], linked=False)


def test_the_edge_is_of_those_that_nothing_beats() -> None:
    seeded = random.Random(7)
    points = [Point(n, str(n), seeded.randint(1, 20), seeded.randint(1, 20), seeded.random() < 0.7)
              for n in range(200)]
    found = edge(points)
    fits = [p for p in points if p.fits]
    for point in fits:
        beaten = any((p.x <= point.x and p.num_bytes <= point.num_bytes) and (p.x, p.num_bytes) != (
            point.x, point.num_bytes) for p in fits)
        first = not any((p.x, p.num_bytes) == (point.x, point.num_bytes) and p.row < point.row for p in fits)
        assert (point in found) == (not beaten and first)
    assert [p.x for p in found] == sorted(p.x for p in found)


def test_the_scatter_draws_every_scenario_with_a_time() -> None:
    reports = [scenario(n, verdict="oom" if n % 5 == 0 else "fits") for n in range(30)] + [scenario(31, time=None)]
    root = ET.fromstring(str(time_scatter(reports, "x")))  # noqa: S314 - written by us
    points = [e for e in root.iter() if "point" in e.get("class", "").split()]
    assert len(points) == 30
    assert {(e.tag, e.text) for e in points if "oom" in e.attrib["class"].split()} == {("text", "\u00d7")}
    assert {e.tag for e in points if "fits" in e.attrib["class"].split()} == {"circle"}
    assert time_scatter([scenario(1, time=None)], "x") is None


def test_what_a_row_opens_to_is_harmless_text() -> None:
    reports = [a_report(EVIL), a_report("\u2028</script>"), a_report("c")]
    page = render(reports * 4)
    data = re.findall(r'<script type="application/json" id="opened">(.*?)</script>', page, flags=re.DOTALL)
    assert len(data) == 1
    assert not set("<>&\u2028\x00\x1b") & set(data[0])
    shown = json.loads(data[0])
    assert shown[1]["name"] == "\u2028</script>"
    assert len(shown) == 12
    assert parsed(page) is not None


def test_a_sweeps_rows_have_short_names_where_columns_say_the_rest() -> None:
    text = str(batch([scenario(n) for n in range(4)], linked=False))
    assert 'title="s[mesh.tp=1]"' in text
    assert ">s 2</button>" in text
    other = str(batch([scenario(n).model_copy(update={"name": f"s[x.y={n}]"}) for n in range(4)], linked=False))
    assert ">s[x.y=1]</button>" in other


@pytest.mark.parametrize("verdict", ["fits", "oom"])
def test_a_bar_says_its_verdict_in_words_too(verdict: str) -> None:
    text = str(batch([scenario(n, verdict=verdict) for n in range(3)], linked=False))
    assert text.count("Fits" if verdict == "fits" else "Out of memory") == 3


def test_scenarios_without_an_answer_have_rows() -> None:
    refused = a_report("r", status="illegal", verdict=None, ranks=(), time=None, capacity_bytes=None)
    root = parsed(render([refused, scenario(1), scenario(2)] * 4))
    rows = [e for e in root.iter("tr") if e.get("data-n")]
    assert len(rows) == 12
    assert "Illegal layout" in "".join(rows[0].itertext())


def test_a_page_of_a_thousand_is_below_six_megabytes() -> None:
    page = render([scenario(n) for n in range(1000)])
    assert len(page.encode()) < 6e6
