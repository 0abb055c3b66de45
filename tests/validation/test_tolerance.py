"""The arithmetic of tolerances, on numbers worked out by hand, and errors on rows that the fit did not see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simcore.validation import tolerance as module
from simcore.validation.runs import read_measured
from simcore.validation.tolerance import (
    Lap,
    Pair,
    Told,
    judge_allocated,
    judge_reserved,
    judge_times,
    judge_verdicts,
    left_out,
    median,
    percentile,
)

GIB, MIB = 2**30, 2**20


def pair(measured: int, simulated: int, framework: str = "megatron", low: int = 0, high: int = 0) -> Pair:
    return Pair(framework, measured, simulated, low, high)


@pytest.mark.parametrize(("values", "percent", "expected"), [
    ([], 90, None), ([7], 90, 7), ([1, 2], 90, 2), ([1, 2], 50, 1), (list(range(10, 0, -1)), 90, 9),
    (list(range(1, 12)), 90, 10), (list(range(1, 101)), 90, 90), ([3, 1, 2], 100, 3)])
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(
    values: list[float], percent: int, expected: float | None
) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(("values", "expected"), [([], None), ([3, 1, 2], 2), ([1, 2, 3, 10], 2.5)])
def test_the_median_is_in_the_middle(values: list[float], expected: float | None) -> None:
    assert median(values) == expected


def test_errors_are_shares_of_what_was_measured() -> None:
    assert pair(200, 150).error == pytest.approx(0.25)
    assert pair(100, 150).error == pytest.approx(0.5)


def test_each_family_has_its_own_tolerance() -> None:
    """2 % is too much for Megatron and not for FSDP2 and Automodel; of others nothing is said."""
    pairs = [pair(100 * GIB, 102 * GIB, name) for name in ("megatron", "fsdp2", "automodel", "ddp")]
    found = {one.what: one for one in judge_allocated("allocated_peak", pairs)}
    assert [(what, one.num, one.is_kept) for what, one in found.items() if "median" in what] == [
        ("Megatron, allocated_peak: median error", 1, False), ("FSDP2 family, allocated_peak: median error", 2, True)]
    assert found["Megatron, allocated_peak: within 4% or 96 MiB"].is_kept
    assert list(judge_allocated("allocated_peak", [pair(1, 2, "ddp")])) == []


@pytest.mark.parametrize(("far", "kept"), [(1, True), (2, False)])
def test_one_in_ten_may_be_far(far: int, kept: bool) -> None:
    pairs = [pair(100 * GIB, 150 * GIB)] * far + [pair(100 * GIB, 100 * GIB)] * (10 - far)
    share = list(judge_allocated("allocated_peak", pairs))[1]
    assert share.found == pytest.approx(1 - far / 10)
    assert share.is_kept is kept


@pytest.mark.parametrize(("off", "kept"), [(96 * MIB, True), (96 * MIB + 1, False)])
def test_small_models_may_be_off_by_some_bytes(off: int, kept: bool) -> None:
    """96 MiB are more than 4 % of a GiB."""
    assert list(judge_allocated("allocated_end", [pair(GIB, GIB - off)]))[1].is_kept is kept


def test_reserved_is_judged_by_its_interval_and_the_middle_of_it() -> None:
    inside, outside = pair(100, 95, low=90, high=100), pair(101, 95, low=90, high=100)
    held, middle = judge_reserved([inside] * 4 + [outside])
    assert (held.found, held.is_kept) == (0.8, True)
    assert middle.found == pytest.approx(0.05)
    assert middle.is_kept
    held, middle = judge_reserved([inside, outside, pair(110, 110, low=95, high=100)])
    assert (held.is_kept, middle.is_kept) == (False, True)
    assert not list(judge_reserved([pair(110, 110, low=95, high=100)]))[1].is_kept


def test_no_run_that_ran_out_of_memory_may_be_told_to_fit() -> None:
    def kept(oom: Told, fits: Told) -> list[bool]:
        return [judgement.is_kept for judgement in judge_verdicts(oom, fits)]

    assert kept(Told(0, 1, 8), Told(89, 8, 3)) == [True, True, True]
    assert kept(Told(1, 0, 899), Told(96, 0, 4)) == [False, False, True]
    assert kept(Told(0, 2, 8), Told(80, 10, 0)) == [True, True, False]
    assert kept(Told(0, 0, 0), Told(0, 0, 0)) == []


# ---- step times -----------------------------------------------------------------------------------------------------
def lap(error: float, kind: str = "untuned", precision: str = "bf16", **told: bool) -> Lap:
    return Lap(error, kind, precision, **{"hybrid": False, "golden": False, "stable": True, **told})


@pytest.mark.parametrize(("one", "family", "most"), [
    (lap(0, "tuned"), "bf16", 0.05), (lap(0, "tuned", "fp32", hybrid=True), "Nemotron", 0.08),
    (lap(0, "untuned", "fp32"), "untuned", 0.15), (lap(0, "tuned", "fp8", stable=False), "fp8, mxfp8 and nvfp4", 0.1),
    (lap(0, "tuned", "mxfp8"), "fp8, mxfp8 and nvfp4", 0.1), (lap(0, "tuned", "nvfp4"), "fp8, mxfp8 and nvfp4", 0.1)])
def test_each_family_of_steps_has_its_median(one: Lap, family: str, most: float) -> None:
    for error, kept in ((most, True), (most + 0.01, False)):
        (found,) = [judgement for judgement in judge_times([replace(one, error=error)]) if "median" in judgement.what]
        assert (found.what, found.is_kept) == (f"step time, {family}: median error", kept)


def test_golden_runs_do_not_drown_the_others() -> None:
    judged = judge_times([lap(0.1, golden=True)] * 9 + [lap(0.2)] * 3)
    found = {judgement.what: (judgement.num, judgement.is_kept) for judgement in judged}
    assert found["step time, untuned: median error"] == (12, True)
    assert found["step time, untuned, without golden runs: median error"] == (3, False)


@pytest.mark.parametrize(("far", "kept"), [(1, True), (2, False)])
def test_one_tuned_step_in_ten_may_be_far(far: int, kept: bool) -> None:
    """Runs that are not tuned, and configurations whose releases differ, are not asked."""
    laps = [lap(0.16, "tuned")] * far + [lap(0.15, "tuned")] * (10 - far)
    others = [lap(9, "untuned"), lap(9, "tuned", stable=False)]
    (found,) = [judgement for judgement in judge_times([*laps, *others]) if "within 15%" in judgement.what]
    assert (found.num, found.is_kept) == (10, kept)
    assert found.found == pytest.approx(1 - far / 10)


def test_no_steps_are_not_judged() -> None:
    assert list(judge_times([])) == []


def test_every_fitted_group_and_machine_was_left_out_once() -> None:
    rows = [one for one in read_measured()[0] if one.row.step_s is not None and one.entry is not None]
    told = [left_out("group", group) for group in {one.row.group for one in rows}]
    assert sum(error is not None for error in told) >= 0.7 * len(told)
    assert all(error is None or 0 <= error < 2 for error in told)
    assert left_out("gpu", "dgx-h100") is not None


def test_nothing_is_told_where_nobody_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "data_folder", lambda _kind: tmp_path)
    module._errors_left_out.cache_clear()
    assert left_out("group", "simumax-b200") is None
    (tmp_path / "left_out.json").write_text(json.dumps({"group": {"simumax-b200": {"median": 0.25}}}))
    module._errors_left_out.cache_clear()
    assert (left_out("group", "simumax-b200"), left_out("group", "others"), left_out("gpu", "dgx-b200")) == (
        0.25, None, None)
    module._errors_left_out.cache_clear()
