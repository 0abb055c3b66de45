"""Measured step times beside simulated ones: what counts once, what is compared, what is judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import rank, reader
from fakes import report as answer
from simcore.cli.sheets.tables import console
from simcore.cli.sheets.validation import validation
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.validation.runs import Measured, layout_of, read_measured
from simcore.validation.step_times import Timing, TimingSummary, timed_layouts, timing
from simcore.validation.validate import layouts, validate

SCENARIO = {"model": "nemotron-3-tiny", "framework": "megatron", "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64}}
SLOWER = {"training": {"seq_len": 128}}


def row(name: str, step_s: float = 0.5, scenario: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    """A row of which the time alone is known, about `SCENARIO` with some of its keys changed."""
    return {"id": name, "group": "g", "source": "s", "scenario": {**SCENARIO, **(scenario or {})}, "step_s": step_s,
            "kind": "tuned", **changed}


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., list[Measured]]:
    return reader(tmp_path)


def timed(found: list[Measured], step_s: float = 0.5, **changed: Any) -> Timing:
    """Every scenario takes as long, of which its optimizer 0.1 s."""
    reports = {layout_of(e): answer(step_s=step_s, scenario=e.scenario.normalised(), **changed)
               for e in timed_layouts(found) if e.scenario}
    return timing(found, reports)


def only(found: Timing) -> TimingSummary:
    assert len(found.summaries) == 1
    return found.summaries[0]


# ---- what counts once -----------------------------------------------------------------------------------------------
def test_rows_of_one_layout_and_release_are_one_observation(measured: Callable[..., list[Measured]]) -> None:
    """Its time is the median: that of 1, 2 and 4 seconds is 2 seconds."""
    timings = timed(measured(row("a", 1), row("b", 2), row("c", 4), row("other release", 1, release="26.02"),
                           row("other layout", 1, SLOWER), row("other group", 1, group="h")))
    assert [(one.rows, one.measured_s) for one in timings.timed] == [
        (("a", "b", "c"), 2), (("other release",), 1), (("other layout",), 1), (("other group",), 1)]
    assert [(one.group, one.num_rows, one.num_distinct, one.num_modelled) for one in timings.summaries] == [
        ("g", 5, 3, 3), ("h", 1, 1, 1)]


def test_each_layout_is_simulated_once(measured: Callable[..., list[Measured]]) -> None:
    rows = measured(row("a", release="1"), row("b", release="2"), row("c", scenario=SLOWER))
    assert [entry.name for entry in timed_layouts(rows)] == ["a", "c"]
    assert [entry.name for entry in layouts(rows)] == ["a", "c"]


@pytest.mark.parametrize(("slowest", "stable"), [(1.15, True), (1.16, False)])
def test_a_configuration_is_stable_where_its_releases_are_near(
    measured: Callable[..., list[Measured]], slowest: float, stable: bool
) -> None:
    timings = timed(measured(row("a", 1, release="1"), row("b", slowest, release="2"), row("c", 9, SLOWER)))
    assert [observation.stable for observation in timings.timed] == [stable, stable, True]


# ---- one step -------------------------------------------------------------------------------------------------------
def test_an_error_is_a_share_of_what_was_measured(measured: Callable[..., list[Measured]]) -> None:
    """0.5 s are simulated; without the optimizer's 0.1 s, 0.4 s."""
    timings = timed(measured(row("a", 0.4), row("b", 1.0, SLOWER, timed="forward_backward")))
    assert [observation.error for observation in timings.timed] == pytest.approx([0.25, -0.6])


def test_a_place_is_a_topology_and_a_format(measured: Callable[..., list[Measured]]) -> None:
    fp8, fp4 = ({"training": {"seq_len": 64, "precision": {"compute": compute}}} for compute in ("fp8", "fp4"))
    timings = timed(measured(
        row("a"), row("b", scenario=fp8), row("c", scenario={**fp8, "framework_options": {"fp8_recipe": "mxfp8"}}),
        row("d", scenario={"topology": {"file": "dgx-b200", "num_nodes": 2}}),
        row("e", scenario={"topology": "dgx-b200", **fp4})))
    assert {(summary.topology, summary.precision) for summary in timings.summaries} == {
        ("dgx-h100", "bf16"), ("dgx-h100", "fp8"), ("dgx-h100", "mxfp8"), ("dgx-b200", "bf16"),
        ("dgx-b200", "nvfp4")}


def test_what_has_no_answer_is_counted_with_its_reason(measured: Callable[..., list[Measured]]) -> None:
    rows = measured(row("a"), row("b"), row("c", scenario=SLOWER),
                    {"id": "d", "group": "g", "source": "s", "not_modelled": "why", "step_s": 1, "kind": "tuned"})
    refused = Report.model_validate({"name": "x", "scenario": {}, "status": "error",
                                     "problems": [{"where": "x", "message": "not yet: this"}]})
    keys = [layout_of(entry) for entry in timed_layouts(rows)]
    timings = timing(rows, {keys[0]: refused, keys[1]: answer(time=None)})
    assert [(gap.reason, gap.num_rows) for gap in timings.gaps] == [
        ("not yet: this", 2), ("simulated without its time", 1), ("no scenario: why", 1)]
    assert [(summary.topology, summary.num_distinct, summary.num_modelled,
             summary.median) for summary in timings.summaries] == [
        ("", 1, 0, None), ("dgx-h100", 2, 0, None)]
    assert timings.judged == ()


def test_an_error_left_out_is_by_the_fit_without_the_row(
    measured: Callable[..., list[Measured]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.5 s are simulated of 0.4 s; without the row's group the fit would say 1.2 times as much. "b" was in no fit."""
    monkeypatch.setattr("simcore.validation.step_times.ratio_left_out", {"a": 1.2}.get)
    timings = timed(measured(row("a", 0.4), row("b", 0.4, SLOWER)))
    assert [one.error for one in timings.timed] == pytest.approx([0.25, 0.25])
    assert [one.left_out_error for one in timings.timed] == pytest.approx([0.5, 0.25])
    assert [one.in_fit for one in timings.timed] == [True, False]
    assert only(timings).left_out == pytest.approx(0.375)
    (judged, *_) = timings.judged
    assert (judged.found, judged.fitted) == pytest.approx((0.375, 0.25))


def test_a_line_has_the_noise_of_its_source(measured: Callable[..., list[Measured]]) -> None:
    """Runs of 1 and 1.2 s under one release are each 1/11 from their median; another release is 1.32 s, median 1.2."""
    timings = timed(measured(row("a", 1, release="1"), row("b", 1.2, release="1"), row("c", 1.32, release="2")))
    noise = only(timings).noise
    assert noise is not None
    assert (noise.repeated, noise.equal) == pytest.approx((1 / 11, 0.1))
    assert (noise.num_repeated, noise.num_equal) == (2, 3)
    assert only(timed(measured(row("a", 1)))).noise is None


# ---- many -----------------------------------------------------------------------------------------------------------
def test_errors_are_summed_up_with_and_without_their_sign(measured: Callable[..., list[Measured]]) -> None:
    """We say 0.5 s: of 0.625, 0.4 and 1 that is -20 %, +25 % and -50 %."""
    rows = [row(name, step_s, release=name) for name, step_s in (("a", 0.625), ("b", 0.4), ("c", 1.0))]
    one = only(timed(measured(*rows), verdict="oom"))
    assert (one.median, one.percentile_90, one.bias) == pytest.approx((0.25, 0.5, -0.2))
    assert (one.worst, one.num_oom) == ("c", 3)
    assert one.worst_error == pytest.approx(-0.5)


def test_golden_runs_and_nemotrons_are_told_by_their_names(measured: Callable[..., list[Measured]]) -> None:
    other = {"model": {"config": "llama-tiny", "overrides": {}}}
    rows = row("a", group="mcore-golden-gpt", kind="untuned"), row("b", kind="untuned", scenario=other)
    timings = timed(measured(*rows))
    counted = {judgement.what.removeprefix("step time, ").removesuffix(": median error"): judgement.num
               for judgement in timings.judged if "median" in judgement.what}
    assert counted == {"bf16": 2, "bf16, without golden runs": 1, "Nemotron": 1, "untuned": 2,
                       "untuned, without golden runs": 1}


def test_time_is_part_of_a_validation(
    measured: Callable[..., list[Measured]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of which the time alone was measured is no reading of memory, and a step that is wrong is not within."""
    rows = measured(row("a", release="26.02"), row("b", 0.9, SLOWER))
    reports = {layout_of(e): answer(scenario=e.scenario.normalised(), ranks=(rank(40),))
               for e in layouts(rows) if e.scenario}
    found = validate(rows, reports)
    assert (found.summaries, found.judged, found.is_within) == ((), (), False)
    assert validate(rows[:1], reports).is_within
    console(sys.stdout).print(*validation(found), sep="\n")
    text = capsys.readouterr().out
    for words in ("step time", "26.02", "tuned and stable: within 15%", "-44.4%", "NOT KEPT"):
        assert words in text


def test_a_measured_step_is_simulated_from_what_comes_along() -> None:
    """The smallest layouts of a published table, with their time."""
    rows, _ = read_measured()
    mine = [one for one in rows if one.row.group == "simumax-b200" and "405b_l4_tp8" in one.row.id]
    reports = {layout_of(entry): simulate(entry.scenario) for entry in timed_layouts(mine) if entry.scenario}
    assert [one.row.kind for one in mine] == ["tuned"] * len(mine)
    assert [summary.num_modelled for summary in timing(mine, reports).summaries] == [len(mine)]
