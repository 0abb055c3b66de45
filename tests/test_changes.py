"""Page of what each missing piece of physics changed: made by its command, of what `validate` finds now."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from checkout import ROOT
from measured_memory import compared_memory

TRUTH = ROOT / "tests" / "truth"
ANEW = "run: rankscope validate --json > V.json, then python tests/truth/changes_page.py --now V.json, and the page"


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(TRUTH), *sys.path])
    return importlib.import_module("changes_page")


def told(errors: dict[str, float], left: dict[str, float] | None = None) -> dict[str, Any]:
    """Answer of `validate` about runs with these errors, each a configuration of two rows."""
    compared = [{"quantity": "peak", "rank": 0, "group": "g", "rows": [row, row * 2], "error": error}
                for row, error in errors.items()]
    timed = [{"group": "g", "rows": [row, row * 2], "error": error, "left_out_error": error}
             for row, error in (left or {}).items()]
    return {"compared": compared, "time": {"timed": timed, "noise": []}}


def test_the_page_is_what_the_command_writes(changes: Any) -> None:
    assert (ROOT / "docs" / "changes.md").read_text(encoding="utf-8") == changes.page(), ANEW


def test_step_times_are_of_the_fit_that_there_is(changes: Any) -> None:
    left = json.loads((TRUTH / "measured" / "left_out.json").read_text(encoding="utf-8"))
    stored = json.loads((TRUTH / "changes" / "errors.json").read_text(encoding="utf-8"))
    assert {key: stored[key] for key in ("rows", "factors")} == {key: left[key] for key in ("rows", "factors")}, ANEW


@pytest.mark.slow
def test_memory_is_what_is_found_now(changes: Any) -> None:
    seen = {(one.quantity, one.rows): one.errors[2] for one in changes.read()[0] if one.kind == changes.MEMORY}
    now = {(f"{one.quantity} {one.rank}", one.rows): one.error for one in compared_memory().compared}
    stale = [key for key, error in now.items() if abs((seen.get(key) or 0.0) - error) > 0.0005]
    gone = [key for key, error in seen.items() if error is not None and key not in now]
    assert (stale, gone) == ([], []), ANEW


def test_an_error_of_a_commit_is_found_by_any_row_of_a_configuration(changes: Any) -> None:
    old, first = (changes.by_row(changes.observed(one), 2) for one in (
        told({"bb": 0.3, "gone": -0.2}), told({"b": 0.2}, left={"b": 0.1})))
    seen = {(one.kind, one.rows): one.errors for one in changes.joined([old, first], changes.observed(
        told({"b": 0.1, "new": 0.0}, left={"b": -0.4})))}
    assert seen == {
        (changes.MEMORY, ("b", "bb")): (0.3, 0.2, 0.1), (changes.MEMORY, ("new", "newnew")): (None, None, 0.0),
        (changes.MEMORY, ("bbbb",)): (0.3, None, None), (changes.MEMORY, ("gone",)): (-0.2, None, None),
        (changes.MEMORY, ("gonegone",)): (-0.2, None, None), (changes.FITTED, ("b", "bb")): (None, 0.1, -0.4),
        (changes.LEFT, ("b", "bb")): (None, 0.1, -0.4)}


def test_nearer_and_farther_are_more_than_noise(changes: Any) -> None:
    """A step time left out has no error at the first commit; memory has no noise."""
    def moved(kind: str, *errors: float | None) -> int:
        return int(changes.Seen(kind, "", "g", ("row",), errors).moved({"g": 0.03}))

    assert moved(changes.MEMORY, -0.01, None, 0.016) == 1
    assert moved(changes.MEMORY, -0.01, None, 0.014) == 0
    assert moved(changes.FITTED, 0.1, 0.0, 0.06) == -1
    assert moved(changes.FITTED, 0.1, 0.0, 0.075) == 0
    assert moved(changes.LEFT, None, 0.02, -0.06) == 1
    assert moved(changes.LEFT, 0.5, None, 0.0) == 0


def test_many_errors_are_told_by_their_middle_and_ends(changes: Any) -> None:
    assert changes.told([-0.1, None, 0.025]) == "-10.0, none, +2.5"
    assert changes.told([None] * 5) == "none"
    assert changes.told([0.01, 0.02, 0.03, -0.04, None]) == "4: +1.5 (-4.0 to +3.0)"


def test_a_reading_without_rows_is_no_reading(changes: Any) -> None:
    item = {"what": "w", "readings": [{"told": "t", "kind": "memory", "rows": "nobody"}]}
    with pytest.raises(AssertionError, match="nobody"):
        list(changes.item_rows([item], changes.read()[0], {}))
