"""Constants that were fitted on step times: the page is current, and no constant belongs to a single row."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checkout import ROOT
from simcore.hardware.efficiency import load_efficiency
from simcore.simulate import simulate
from simcore.validation.runs import read_measured

TRUTH = ROOT / "tests" / "truth"
FITTED: dict[str, Any] = json.loads((TRUTH / "measured" / "fitted.json").read_text(encoding="utf-8"))
LEFT_OUT: dict[str, Any] = json.loads((TRUTH / "measured" / "left_out.json").read_text(encoding="utf-8"))


@pytest.fixture
def fit_time(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(TRUTH), *sys.path])
    return importlib.import_module("fit_time")


@pytest.fixture
def fit_left_out(fit_time: Any) -> Any:
    return importlib.import_module("fit_left_out")


def test_the_page_is_what_the_fit_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TRUTH), *sys.path])
    page = importlib.import_module("fit_page").page()
    assert (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8") == page


def test_files_hold_what_the_fit_found(fit_time: Any) -> None:
    point = fit_time.start()
    for number in fit_time.NUMBERS:
        at: Any = load_efficiency(number.file).model_dump(by_alias=True)
        for key in number.keys:
            at = at[key]
        assert at["value"] == fit_time.written(number, point), (number.file, number.keys)


def test_every_factor_is_of_many_rows_or_says_that_none_tells() -> None:
    groups = {one.row.group for one in read_measured()[0]}
    assert all(set(found["rows_of"]) <= groups for found in FITTED.values())
    assert any(found["rows_of"] for found in FITTED.values())


def test_a_fit_finds_what_made_the_times(fit_time: Any) -> None:
    """Errors that are a straight line of two factors: it goes there, and a row left out changes nothing."""
    names = list(fit_time.FACTORS)
    true = np.zeros(len(names))
    true[:2] = 0.1, -0.15
    slopes = np.zeros((1000, len(names)))
    slopes[::2, 0], slopes[1::2, 1] = -0.8, -0.6
    fit_time._CASES[:] = [fit_time.Case("g", "f", "t", "h100", ("r",), 1.0, "step", None, None)] * 1000
    try:
        line = fit_time.Line(dict.fromkeys(names, 0.0), -slopes @ true, slopes)
        found = fit_time.solved(line, np.ones(1000))
        fewer = fit_time.solved(line, np.arange(1000) % 10 != 0)
    finally:
        fit_time._CASES.clear()
    assert [found[name] for name in names[:2]] == pytest.approx([0.1, -0.15], abs=0.01)
    assert [fewer[name] for name in names[:2]] == pytest.approx([0.1, -0.15], abs=0.01)
    assert all(abs(found[name]) < 1e-9 for name in names[2:])


def test_rows_of_a_group_count_less_than_as_many_groups(fit_time: Any) -> None:
    """Ten groups of one row say one thing of a factor, a group of ten the opposite: it is not a draw."""
    weights = fit_time.weights_of([*range(10), *["many"] * 10])
    assert weights == pytest.approx([1.0] * 10 + [1 / (1 + 9 * fit_time.ALIKE)] * 10)
    names = list(fit_time.FACTORS)
    slopes, errors = np.zeros((20, len(names))), np.repeat([0.03, -0.03], 10)
    slopes[:, 0] = 1.0
    line = fit_time.Line(dict.fromkeys(names, 0.0), errors, slopes, weights)
    point = fit_time.solved(line, np.ones(20))
    assert point[names[0]] < -0.01
    assert point[names[1]] == 0.0
    even = fit_time.solved(fit_time.Line(line.point, errors, slopes), np.ones(20))
    assert even[names[0]] == pytest.approx(0.0, abs=1e-6)


# ---- rows left out --------------------------------------------------------------------------------------------------
STALE = "run: python tests/truth/fit_left_out.py, then python tests/truth/fit_page.py > docs/calibration.md"


def test_errors_left_out_are_of_the_rows_and_factors_that_there_are(fit_left_out: Any) -> None:
    rows = [row for group in LEFT_OUT["together"] for _, ids in group["ratios"] for row in ids]
    assert len({*rows}) == len(rows)
    assert fit_left_out.digest_of_rows(rows) == LEFT_OUT["rows"], STALE
    assert fit_left_out.digest_of_factors() == LEFT_OUT["factors"], STALE


def test_what_the_page_tells_of_validate_is_of_the_same_fit() -> None:
    told = json.loads((TRUTH / "measured" / "judged.json").read_text(encoding="utf-8"))
    assert {key: told[key] for key in ("rows", "factors")} == {key: LEFT_OUT[key] for key in ("rows", "factors")}, \
        "run: rankscope validate --json > V.json, then python tests/truth/fit_judged.py V.json, and fit_page.py"


def test_large_errors_are_counted_by_group(fit_time: Any) -> None:
    """Runs that are kept out are told apart; a group without large errors is not listed."""
    module = importlib.import_module("fit_judged")
    run = {"kind": "tuned", "stable": True, "group": "g", "model": "m", "topology": "t", "precision": "bf16"}
    timed = [run | {"rows": [name], "model": model, "left_out_error": error} for name, model, error in (
        ("a", "m", 0.2), ("b", "m", -0.02), ("c", "small", 0.05), ("d", "m", -0.3))]
    told = module.judged({"time": {"timed": timed, "judged": []}}, ["d"], {"rows": "r", "factors": "f"})
    assert [(one["of"], one["num"], one["large"], one["bias"]) for one in told["groups"]] == [
        (["g", "m", "t", "bf16"], 2, 1, pytest.approx(0.09))]
    assert [(one["of"], one["num"], one["most"]) for one in told["kept_out"]] == [(["g", "t"], 1, -0.3)]


def test_another_time_or_factor_makes_them_stale(fit_left_out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = read_measured()[0]
    first = next(one for one in rows if one.row.step_s is not None and one.entry is not None)
    before = fit_left_out.digest_of_rows([first.row.id])
    changed = replace(first, row=first.row.model_copy(update={"step_s": (first.row.step_s or 0) + 1}))
    monkeypatch.setattr(fit_left_out, "read_measured", lambda: ([changed], []))
    assert fit_left_out.digest_of_rows([first.row.id]) != before
    factors = fit_left_out.digest_of_factors()
    monkeypatch.setitem(fit_left_out.FACTORS, "step", 0.11)
    assert fit_left_out.digest_of_factors() != factors


def test_a_fit_without_rows_is_solved_until_it_stays(fit_left_out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are no straight line of a factor: half of them is constant, half falls with it.

    Rows say that the factor is exp(0.5); the one that is left out says something else, and is not heard. Where straight
    lines are not taken anew, the answer is away by more than a hundredth.
    """
    names, num = list(fit_left_out.FACTORS), 400
    name, true = names[0], 0.5

    def error(at: float) -> float:
        return math.log(0.5 + 0.5 * math.exp(-at)) - math.log(0.5 + 0.5 * math.exp(-true))

    def row_at(task: tuple[int, dict[str, float]]) -> tuple[int, float, dict[str, float]]:
        at = task[1][name]
        slope = -0.5 * math.exp(-at) / (0.5 + 0.5 * math.exp(-at))
        return task[0], error(at), {**dict.fromkeys(names, 0.0), name: slope}

    monkeypatch.setattr(fit_left_out, "row_at", row_at)
    pool = SimpleNamespace(imap_unordered=map)
    point = dict.fromkeys(names, 0.0)
    slopes = np.zeros((num, len(names)))
    slopes[:, 0] = -0.5
    errors = np.full(num, error(0.0))
    errors[0] = 3.0
    used = np.arange(num) > 0
    line = fit_left_out.Line(point, errors, slopes)
    found = fit_left_out.settled(pool, line, used.astype(float))
    assert found[name] == pytest.approx(true, abs=0.01)
    assert abs(fit_left_out.solved(line, used.astype(float))[name] - true) > 0.01


def test_a_factor_rests_alone_on_the_only_rows_that_know_it(fit_left_out: Any) -> None:
    """Ten rows know the first factor, five of them the second too; rows of neither say nothing of it."""
    slopes = np.zeros((20, len(fit_left_out.FACTORS)))
    slopes[:10, 0], slopes[:5, 1] = 1.0, 1.0
    line = fit_left_out.Line(dict.fromkeys(fit_left_out.FACTORS, 0.0), np.zeros(20), slopes)
    names = list(fit_left_out.FACTORS)
    assert fit_left_out.alone(line, range(10)) == names[:2]
    assert fit_left_out.alone(line, range(5)) == names[1:2]
    assert fit_left_out.alone(line, range(10, 20)) == []


def test_a_configuration_is_timed_as_a_simulation_times_it(fit_time: Any) -> None:
    """A step without its optimizer too. A factor that a row is said not to know does not change its time.

    No factor is of the machine of SimuMax, which published what its kernels reach alone.
    """
    fit_cases = importlib.import_module("fit_cases")
    point = fit_time.start()
    for group in ("automodel-blog", "mbridge-skill", "simumax-b200"):
        row = next(one for one in read_measured()[0] if one.row.group == group and one.entry and one.row.step_s)
        case = fit_cases._case([row])
        assert row.entry is not None
        assert row.entry.scenario is not None
        time = simulate(row.entry.scenario).time
        assert time is not None
        seconds = time.step_s - (time.optimizer_s if row.row.timed == "forward_backward" else 0.0)
        assert case.log_error(point) == pytest.approx(math.log(seconds / (row.row.step_s or 0.0)), abs=0.005), group
        slopes = case.slopes(point)
        for names in fit_cases.alike(case.file).values():
            if slopes[names[0]] == 0.0:
                moved = case._log_time(case.short, {**point, names[0]: point[names[0]] + 0.3})
                assert moved == case._log_time(case.short, point), names
        assert any(slopes.values()) == (group != "simumax-b200"), group
