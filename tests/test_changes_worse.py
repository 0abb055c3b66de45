"""Rows that are farther on the page of changes: by chance, and why."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from checkout import ROOT

TRUTH = ROOT / "tests" / "truth"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(TRUTH), *sys.path])
    return importlib.import_module(name)


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module("changes_chance", monkeypatch)


@pytest.fixture
def worse(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module("changes_worse", monkeypatch)


def moves(chance: Any, left: np.ndarray[Any, Any], moved: np.ndarray[Any, Any]) -> Any:
    """Rows whose logarithm is `left` now, and moved there by `moved`; each a group."""
    return chance.Moves(np.expm1(left - moved), np.expm1(left), np.full(len(left), 0.02), (*range(len(left)),))


def test_right_changes_make_as_many_rows_farther_as_chance(chance: Any) -> None:
    """Errors that are left know nothing of the move, and yet a fifth of the rows goes farther."""
    rng = np.random.default_rng(1)
    right = moves(chance, rng.normal(0.0, 0.06, 600), rng.normal(0.0, 0.06, 600))
    found = chance.chances(right, {"all": range(600), "some": range(50)})
    assert found["all"].is_chance
    assert 0.15 < found["all"].mean / 600 < 0.3
    assert found["all"].low < found["all"].mean < found["all"].high < chance.blind(right)
    assert abs(right.correlation) < 0.1
    assert 0 < found["some"].mean < 0.3 * 50


def test_blind_changes_make_more_rows_farther_than_chance(chance: Any) -> None:
    """They add to the error, so that what is left goes with the move."""
    rng = np.random.default_rng(2)
    then, moved = rng.normal(0.0, 0.06, 600), rng.normal(0.0, 0.06, 600)
    added = moves(chance, then + moved, moved)
    found = chance.chances(added, {"all": range(600)})["all"]
    assert not found.is_chance
    assert found.farther == pytest.approx(chance.blind(added), rel=0.1)
    assert added.correlation > 0.5


def test_rows_of_a_group_have_one_sign(chance: Any) -> None:
    """Ten equal rows go farther together or not at all."""
    one = chance.Moves(np.full(10, 0.01), np.full(10, 0.06), np.full(10, 0.02), ("g",) * 10)
    assert {int(one.farther(signs).sum()) for signs in one.signs()} == {0, 10}


def test_a_cause_is_the_largest_part_in_the_direction_of_the_move(worse: Any) -> None:
    assert worse.cause_of({"factors": -0.05, "physics": 0.04, "left_out": -0.01}) == "factors"
    assert worse.cause_of({"factors": -0.05, "physics": 0.07, "left_out": -0.01}) == "physics"
    assert worse.cause_of({}) == ""


def test_each_row_that_is_farther_has_a_cause(worse: Any) -> None:
    seen, noise = importlib.import_module("changes_seen").read()
    left = [one for one in seen if one.kind == worse.LEFT and one.moved(noise) > 0]
    known = worse.causes()
    assert [one.rows[0] for one in left if one.rows[0] not in known] == [], "run: tests/truth/changes_causes.py"
    assert sum(int(line[1]) for line in worse.caused(left, noise)) == len(left)
    for one in left:
        parts = known[one.rows[0]]
        assert not parts or sum(parts.values()) == pytest.approx(
            np.log1p(one.errors[2]) - np.log1p(one.errors[1]), abs=0.001), one.rows


def test_parts_add_up_and_shares_of_then_take_the_place_of_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    causes = module("changes_causes", monkeypatch)
    told = causes.parts((0.1, 0.2), (0.05, 0.3), 0.03)
    assert sum(told) == pytest.approx(np.log(1.3 / 1.05))
    assert told.physics + told.factors == pytest.approx(np.log(1.2 / 1.1))
    assert causes.stretched((2.0, 0.5), (3.5, 0.5), 8.0) == pytest.approx((0.5 + 2 * 7.5) / 8.0)
    now = causes.load_efficiency("h100")
    older = causes.shares_of({"kernels": {"gemm": {"compute": {"value": "70%"}}}, "gone": {"value": "1%"},
                              "overlap": {"expert": {"value": "51%"}}, "host": {"step": {"value": "37 ms"}}}, now)
    assert older.kernels.gemm.compute.si == pytest.approx(0.7)
    assert older.kernels.gemm.memory == now.kernels.gemm.memory
    assert older.overlap.expert == now.overlap.expert
    assert older.host.step == now.host.step
    assert older.host.step.si + older.host.statistics.si == pytest.approx(0.037)


def test_refits_of_a_fit_that_rests_on_one_group_move_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two factors: one is told by many groups alike, the other by two groups that contradict each other."""
    refits = module("changes_refits", monkeypatch)
    lines = [[[f"steady {n}"], ["s", "f", f"{n}"], 0.0, {"steady": 1.0}] for n in range(12)]
    lines += [[[f"torn {n}"], ["t", "f", f"{n}"], (-1) ** n * 0.15, {"torn": 1.0}] for n in range(4)]
    told = {"factors": {"steady": 0.1, "torn": 0.3}, "point": {"steady": 0.0, "torn": 0.0}, "lines": lines}
    fit, groups = refits.read_fit(told)
    assert fit.solved(np.ones(16)) == pytest.approx([0.0, 0.0], abs=1e-3)
    errors = refits.drawn(fit, groups, draws=12)
    assert np.abs(errors[:, :12]).max() < 1e-6
    found = refits.counted(errors, np.full(16, 0.02))
    assert (found["configurations"], found["medians"]) == (16, [0.0, 0.0, 0.0])
    assert 0.0 < found["mean"] < 4.0


def test_a_row_is_predicted_without_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    refits = module("changes_refits", monkeypatch)
    lines = [[["a"], ["s", "f", "a"], 0.1, {"k": 1.0}], [["b"], ["s", "f", "b"], 0.0, {}]]
    fit, groups = refits.read_fit({"factors": {"k": 10.0}, "point": {"k": 0.0}, "lines": lines})
    assert fit.at(fit.solved(np.ones(2))) == pytest.approx([0.0, 0.0], abs=1e-3)
    assert refits.left_out(fit, groups, np.ones(2)) == pytest.approx([0.1, 0.0])


def test_refits_are_of_the_lines_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    refits = module("changes_refits", monkeypatch)
    stored = json.loads((refits.CHANGES / "refits.json").read_text(encoding="utf-8"))
    assert stored
    for commit, found in stored.items():
        told = json.loads((refits.CHANGES / f"lines-{commit}.json").read_text(encoding="utf-8"))
        fit, groups = refits.read_fit(told)
        assert (found["factors"], found["configurations"]) == (len(told["factors"]), len(groups))
        fitted = np.median(np.abs(np.expm1(fit.errors)))
        assert fitted < found["medians"][0] < found["medians"][1] < found["medians"][2] < 2 * fitted
        assert 0 < found["low"] < found["mean"] < found["high"] < found["configurations"] / 2


def test_each_row_that_is_farther_by_physics_has_a_rule(worse: Any) -> None:
    seen, noise = importlib.import_module("changes_seen").read()
    left = [one for one in seen if one.kind == worse.LEFT and one.moved(noise) > 0]
    causes = [worse.cause_of(worse.causes()[one.rows[0]]) for one in left]
    assert sum(map(len, worse.ruled(left, noise).values())) == causes.count("physics")
