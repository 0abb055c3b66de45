"""The arithmetic of tolerances, on numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.validation.tolerance import (
    Lap,
    Pair,
    Told,
    judge_allocated,
    judge_reserved,
    judge_times,
    judge_verdicts,
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
def lap(error: float, kind: str = "untuned", precision: str = "bf16", fitted: float | None = None,
        noise: float | None = None, **told: bool) -> Lap:
    """A step with an error when left out; that of the whole fit is as large unless `fitted` says otherwise."""
    return Lap(error, kind, precision, **{"hybrid": False, "golden": False, "stable": True, **told},
               fitted=error if fitted is None else fitted, noise=noise)


@pytest.mark.parametrize(("one", "family", "most"), [
    (lap(0, "tuned", "fp32"), "tuned", 0.06), (lap(0, "x"), "bf16", 0.06), (lap(0, "x", "fp32", hybrid=True),
                                                                            "Nemotron", 0.09),
    (lap(0, "untuned", "fp32"), "untuned", 0.15), (lap(0, "x", "fp8", stable=False), "fp8, mxfp8 and nvfp4", 0.07),
    (lap(0, "x", "mxfp8"), "fp8, mxfp8 and nvfp4", 0.07), (lap(0, "x", "nvfp4"), "fp8, mxfp8 and nvfp4", 0.07),
    (lap(0, "x", "fp32", mlperf=True), "MLPerf", 0.08)])
def test_each_family_of_steps_has_its_median(one: Lap, family: str, most: float) -> None:
    for error, kept in ((most, True), (most + 0.01, False)):
        laps = [replace(one, error=error, fitted=error)]
        (found,) = [judgement for judgement in judge_times(laps) if "median" in judgement.what]
        assert (found.what, found.is_kept) == (f"step time, {family}: median error", kept)


def test_a_run_left_out_decides_and_the_whole_fit_stands_beside_it() -> None:
    """Errors of 10 % where the whole fit has 2 % break the tolerance and the ratio of 1.5."""
    of_median, ratio = judge_times([lap(0.1, "x", fitted=0.02)] * 3)
    assert (of_median.found, of_median.fitted, of_median.is_kept) == (0.1, 0.02, False)
    assert ratio.found == pytest.approx(5)
    assert not ratio.is_kept
    near, kept = judge_times([lap(0.06, "x", fitted=0.04)] * 3)
    assert kept.found == pytest.approx(1.5)
    assert (near.is_kept, kept.is_kept) == (True, True)


def test_an_error_below_the_noise_is_none() -> None:
    of_median, ratio = judge_times([lap(0.1, "x", fitted=0.02, noise=0.1)] * 3)
    assert (of_median.noise, of_median.is_kept, ratio.is_kept) == (0.1, True, True)
    of_median, ratio = judge_times([lap(0.11, "x", fitted=0.02, noise=0.1)] * 3)
    assert (of_median.is_kept, ratio.is_kept) == (False, False)


def test_a_line_of_several_sources_has_the_noise_of_those_that_have_one_and_their_share() -> None:
    """Noise excuses nothing where most sources have none: the median of all is judged, an unknown noise for none."""
    laps = [lap(0.1, "x", fitted=0.09, noise=noise) for noise in (0.2, 0.1, None, None, None)]
    of_median, ratio = judge_times(laps)
    for line in (of_median, ratio):
        assert line.noise == pytest.approx(0.15)
        assert line.noise_share == pytest.approx(0.4)
    assert not of_median.is_kept
    (alone, _) = judge_times(laps[3:])
    assert (alone.noise, alone.noise_share) == (None, 0)


def test_lines_of_memory_have_the_noise_of_their_sources() -> None:
    pairs = [replace(pair(100, 100), noise=noise) for noise in (0.01, 0.03, None, None)]
    for line in (*judge_allocated("allocated_peak", pairs), *judge_reserved(pairs)):
        assert line.noise == pytest.approx(0.02)
        assert line.noise_share == 0.5
    assert {line.noise_share for line in judge_verdicts(Told(0, 1, 8), Told(89, 8, 3))} == {None}


def test_steps_that_generate_are_not_judged() -> None:
    laps = [lap(0.01, "tuned")] * 3
    assert list(judge_times([*laps, *[lap(0.9, "rl")] * 9])) == list(judge_times(laps))
    assert list(judge_times([lap(0.9, "rl")])) == []


def test_golden_runs_do_not_drown_the_others() -> None:
    judged = judge_times([lap(0.1, golden=True)] * 9 + [lap(0.2)] * 3)
    found = {judgement.what: (judgement.num, judgement.is_kept) for judgement in judged}
    assert found["step time, untuned: median error"] == (12, True)
    assert found["step time, untuned, without golden runs: median error"] == (3, False)


@pytest.mark.parametrize(("far", "kept"), [(3, True), (4, False)])
def test_twelve_tuned_steps_in_a_hundred_may_be_far(far: int, kept: bool) -> None:
    """Three of 25 may. Runs that are not tuned, and configurations whose releases differ, are not asked."""
    laps = [lap(0.16, "tuned", fitted=0.0)] * far + [lap(0.15, "tuned")] * (25 - far)
    others = [lap(9, "untuned"), lap(9, "tuned", stable=False)]
    (found,) = [judgement for judgement in judge_times([*laps, *others]) if "within 15%" in judgement.what]
    assert (found.num, found.is_kept, found.fitted) == (25, kept, 1.0)
    assert found.found == pytest.approx(1 - far / 25)


def test_no_steps_are_not_judged() -> None:
    assert list(judge_times([])) == []
