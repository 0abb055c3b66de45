"""The verdict as a badge."""

from __future__ import annotations

from typing import Any

import pytest

from reports import GIB, a_report, parsed
from viz.pages.page import render


@pytest.mark.parametrize(("changes", "word"), [
    ({}, "Fits"),
    ({"verdict": "oom", "headroom_bytes": -3 * GIB}, "Out of memory"),
    ({"status": "illegal", "verdict": None}, "Illegal layout"),
    ({"status": "error", "verdict": None, "ranks": (), "time": None, "capacity_bytes": None}, "Could not be answered"),
    ({"verdict": None}, "No verdict"),
])
def test_the_verdict_is_a_word(changes: dict[str, Any], word: str) -> None:
    root = parsed(render([a_report(**changes)]))
    shown = ["".join(e.itertext()) for e in root.iter("strong") if "verdict" in e.get("class", "")]
    assert len(shown) == 1
    assert shown[0].endswith(word)
