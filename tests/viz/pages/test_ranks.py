"""Sections of classes of ranks."""

from __future__ import annotations

from reports import a_rank, a_report, parsed
from viz.pages.page import render


def test_without_a_script_the_issue_order_is_in_view() -> None:
    root = parsed(render([a_report()]))
    plots = [e for e in root.iter("div") if e.get("class") == "plot"]
    assert [(e.attrib["data-view"], "hidden" in e.attrib) for e in plots] == [
        ("category issue", False), ("category time", True)] * 2
    assert all("hidden" in e.attrib for e in root.iter("fieldset"))


def test_of_many_classes_of_ranks_only_the_highest_is_open() -> None:
    ranks = tuple(a_rank("x", str(n), 20 if n == 3 else 12) for n in range(6))
    sections = [e for e in parsed(render([a_report(ranks=ranks)])).iter("details") if e.get("class") == "rank"]
    assert ["open" in e.attrib for e in sections] == [n == 3 for n in range(6)]


def test_ranks_without_peak_or_series_are_still_told() -> None:
    bare = a_rank("x", "0-3", 12).model_copy(update={"peak": None, "memory": None})
    page = render([a_report(ranks=(bare,), verdict=None)])
    assert "holds no memory over time" in page
    assert parsed(page) is not None
