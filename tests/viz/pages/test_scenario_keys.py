"""Keys in which scenarios differ."""

from __future__ import annotations

from reports import swept_report
from viz.pages.scenario_keys import differing_keys, flat_keys


def test_only_what_differs_can_be_filtered_by_and_axes_come_first() -> None:
    reports = [swept_report(n) for n in range(12)]
    assert list(differing_keys(reports)) == ["mesh.tp", "training.seq_len"]
    assert differing_keys(reports, most=3) == {"training.seq_len": ["0", "1024", "2048"] * 4}


def test_scenarios_are_flat_text() -> None:
    values = flat_keys({"name": "x", "a": {"b": None, "c": {}, "d": [1, "two"]}, "e": True, "f": 2.5})
    assert values == {"a.b": "\u2013", "a.c": "\u2013", "a.d": "1, two", "e": "true", "f": "2.5"}
