"""Measured runs beside results: what counts once, which rank is compared, errors, reasons, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from fakes import peak, rank, reader
from simcore.cli.sheets.tables import console
from simcore.cli.sheets.validation import validation
from simcore.results.report import ProblemRow, RankReport, Report
from simcore.simulate import simulate
from simcore.validation.runs import Measured, layout_of, read_measured
from simcore.validation.validate import Summary, Validation, layouts, validate

GIB = 2**30
SCENARIO = {"model": "nemotron-3-tiny", "framework": "megatron", "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64}}


def reading(of: str = "allocated_peak", where: int | str = 0, gib: float = 40) -> dict[str, Any]:
    return {"of": of, "rank": where, "bytes": round(gib * GIB)}


def row(
    name: str, *readings: dict[str, Any], verdict: str = "fits", group: str = "g", **changed: Any
) -> dict[str, Any]:
    """A row about `SCENARIO` with some of its keys changed."""
    return {"id": name, "group": group, "source": "s", "scenario": {**SCENARIO, **changed}, "readings": list(readings),
            "verdict": verdict}


def batch(size: int) -> dict[str, Any]:
    return {"training": {"seq_len": 64, "global_batch_size": size}}


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., list[Measured]]:
    return reader(tmp_path)


def answer(scenario: dict[str, Any], *ranks: RankReport, verdict: str = "fits") -> Report:
    return Report.model_validate({"name": "x", "scenario": scenario, "status": "ok", "verdict": verdict,
                                  "ranks": ranks or (rank(40),)})


def judged(found: list[Measured], *ranks: RankReport, verdict: str = "fits") -> Validation:
    """Every scenario gets the same answer."""
    return validate(found, {layout_of(e): answer(e.scenario.normalised(), *ranks, verdict=verdict)
                            for e in layouts(found) if e.scenario})


def only(found: Validation) -> Summary:
    assert len(found.summaries) == 1
    return found.summaries[0]


# ---- what counts once -----------------------------------------------------------------------------------------------
def test_equal_scenarios_are_simulated_once(measured: Callable[..., list[Measured]]) -> None:
    rows = measured(row("a", reading(gib=40)), row("b", reading(gib=41)), row("c", reading(gib=42), **batch(8)))
    assert [entry.name for entry in layouts(rows)] == ["a", "c"]


def test_rows_that_differ_in_microbatches_alone_and_read_the_same_are_one(
    measured: Callable[..., list[Measured]]
) -> None:
    rows = measured(row("a", reading(gib=41), **batch(4)), row("b", reading(gib=41), **batch(8)),
                    row("other bytes", reading(gib=42), **batch(8)), row("other group", reading(gib=41), group="h"))
    found = judged(rows)
    assert [(s.group, s.num_readings, s.num_distinct, s.num_modelled) for s in found.summaries] == [
        ("g", 3, 2, 2), ("h", 1, 1, 1)]
    assert [c.rows for c in found.compared if c.group == "g"] == [("a", "b"), ("other bytes",)]
    assert len(layouts(rows)) == 2 + 1  # the third asks for the default batch


def test_rows_without_a_scenario_are_never_one(measured: Callable[..., list[Measured]]) -> None:
    lacking = [{"id": name, "group": "g", "source": "s", "not_modelled": "why", "readings": [reading()]}
               for name in ("a", "b")]
    found = judged(measured(*lacking))
    assert (only(found).num_distinct, only(found).num_modelled) == (2, 0)
    assert [(gap.reason, gap.num_rows, gap.groups) for gap in found.gaps] == [("no scenario: why", 2, ("g",))]


# ---- one reading ----------------------------------------------------------------------------------------------------
def two_stages() -> tuple[RankReport, RankReport]:
    return (rank(40, ranks=("0-2:2",), end_bytes=7 * GIB), rank(60, ranks=("1-3:2",), end_bytes=9 * GIB))


@pytest.mark.parametrize(("where", "of", "gib"), [
    (0, "allocated_peak", 40), (2, "allocated_peak", 40), (3, "allocated_peak", 60), ("last", "allocated_peak", 60),
    ("max", "allocated_peak", 60), (0, "allocated_end", 7), ("last", "allocated_end", 9)])
def test_the_same_rank_and_quantity_are_compared(
    measured: Callable[..., list[Measured]], where: int | str, of: str, gib: int
) -> None:
    ranks = two_stages()
    allocated = {40: ranks[0].peak, 60: ranks[1].peak}.get(gib)
    expected = allocated.allocated_bytes if allocated else gib * GIB
    found = judged(measured(row("a", reading(of, where))), *ranks)
    assert [c.simulated_bytes for c in found.compared] == [expected]


def test_a_rank_that_is_not_there_and_a_first_step_have_no_number(measured: Callable[..., list[Measured]]) -> None:
    found = judged(measured(row("a", reading("allocated_peak_first"), reading(where=9))))
    assert found.compared == ()
    assert [(s.quantity, s.num_modelled, s.median) for s in found.summaries] == [
        ("allocated_peak", 0, None), ("allocated_peak_first", 0, None)]
    assert [gap.reason for gap in found.gaps] == [
        "allocated_peak: a result has no such number", "allocated_peak_first: a result has no such number"]


def test_reserved_has_an_interval_of_its_own(measured: Callable[..., list[Measured]]) -> None:
    banded = peak(40).model_copy(update={"reserved_bytes": 30, "reserved_band_bytes": (25, 50), "band_bytes": (45, 70)})
    found = judged(measured(row("a", reading("reserved_peak"))), rank(40, peak=banded))
    assert [(c.low_bytes, c.simulated_bytes, c.high_bytes) for c in found.compared] == [(25, 30, 50)]


# ---- many -----------------------------------------------------------------------------------------------------------
def test_errors_are_summed_up_with_and_without_their_sign(measured: Callable[..., list[Measured]]) -> None:
    """We say 40 GiB: of 50, 32 and 80 that is -20 %, +25 % and -50 %."""
    ours = rank(40).peak
    assert ours is not None
    scale = ours.allocated_bytes / GIB / 40
    rows = [row(name, reading(gib=gib * scale)) for name, gib in (("a", 50), ("b", 32), ("c", 80))]
    found = judged(measured(*rows), rank(40))
    one = only(found)
    assert (one.median, one.percentile_90, one.bias) == pytest.approx((0.25, 0.5, -0.2), abs=1e-6)
    assert one.worst == "c"
    assert one.worst_error == pytest.approx(-0.5, abs=1e-6)
    assert [c.rows[0] for c in found.worst] == ["c", "b", "a"]
    assert not found.is_within


def test_verdicts_are_counted_and_the_wrong_ones_named(measured: Callable[..., list[Measured]]) -> None:
    found = judged(measured(row("ran", reading()), row("died", verdict="oom")), verdict="fits")
    assert [(v.measured, v.told_fits, v.told_oom, v.not_modelled, v.wrong) for v in found.verdicts] == [
        ("oom", 1, 0, 0, ("died",)), ("fits", 1, 0, 0, ())]
    assert [(j.what, j.is_kept) for j in found.judged if "memory" in j.what] == [
        ("out of memory, told to fit", False), ("ran, told to be out of memory", True)]


def test_what_is_refused_is_not_modelled_for_every_reason(measured: Callable[..., list[Measured]]) -> None:
    rows = measured(row("a", reading(), **batch(4)), row("b", reading(), **batch(8)), row("c", reading(gib=3)))
    key, other = (layout_of(entry) for entry in layouts(rows))
    problems = (ProblemRow(where="x", message="not yet: this"), ProblemRow(where="x", message="not yet: that"))
    refused = Report(name="a", scenario={}, status="error", problems=problems)
    illegal = Report(name="c", scenario={}, status="illegal", problems=problems[:1])
    found = validate(rows, {key: refused, other: illegal})
    assert [(gap.reason, gap.num_rows) for gap in found.gaps] == [
        ("not yet: this", 2), ("not yet: that", 2), ("illegal: not yet: this", 1)]
    assert (only(found).num_readings, only(found).num_distinct, only(found).num_modelled) == (3, 2, 0)
    assert [v.not_modelled for v in found.verdicts] == [0, 2]


def test_nothing_to_judge_is_not_within_the_tolerance(measured: Callable[..., list[Measured]]) -> None:
    rows = measured({"id": "a", "group": "g", "source": "s", "not_modelled": "why", "verdict": "oom"})
    assert judged(rows).judged == ()
    assert not judged(rows).is_within


def test_everything_is_shown_and_read_back(
    measured: Callable[..., list[Measured]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged(measured(row("a", reading(gib=50)), row("died", verdict="oom")))
    console(sys.stdout).print(*validation(found), sep="\n")
    text = capsys.readouterr().out
    for words in ("allocated_peak", "died", "NOT KEPT", "Megatron, allocated_peak: median error", "bias"):
        assert words in text
    assert Validation.model_validate_json(found.model_dump_json()) == found


# ---- the command ----------------------------------------------------------------------------------------------------
def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "simcore", "validate", *arguments], cwd=ROOT, capture_output=True,
                          text=True, check=False)


def simulated(found: list[Measured]) -> int:
    scenario = found[0].entry.scenario if found[0].entry else None
    assert scenario is not None
    told = simulate(scenario, timed=False).ranks[0].peak
    assert told is not None
    return max(told.allocated_bytes, told.first_step_bytes or 0)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.25, 1)])
def test_the_exit_code_says_whether_the_tolerance_is_kept(
    measured: Callable[..., list[Measured]], tmp_path: Path, factor: float, code: int
) -> None:
    """A row whose reading is what we say, and one that is a quarter higher."""
    ours = simulated(measured(row("a", reading())))
    measured(row("a", reading(gib=factor * ours / GIB)))
    done = ran(str(tmp_path / "rows.jsonl"), "--json")
    assert (done.returncode, done.stderr) == (code, "")
    (found,) = json.loads(done.stdout)
    assert found["compared"][0]["error"] == pytest.approx(1 / factor - 1, abs=1e-6)


def test_a_wrong_row_is_told_and_the_others_are_compared(
    measured: Callable[..., list[Measured]], tmp_path: Path
) -> None:
    measured(row("a", reading()))
    file = tmp_path / "rows.jsonl"
    file.write_text(file.read_text(encoding="utf-8") + '\n{"id": "b"}\n', encoding="utf-8")
    done = ran(str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"rankscope: {file}:2: row b: group: expected text, the key is missing; ")
    assert len(done.stderr.splitlines()) == 1
    assert "allocated_peak" in done.stdout


def test_a_measured_row_is_simulated_from_what_comes_along() -> None:
    """Two layouts of a published ladder are small enough to be told at once."""
    found, _ = read_measured([str(ROOT / "tests/truth/measured/simumax-b200.jsonl")])
    small = ("llama3_405b_l4_tp4_", "llama3_405b_l4_tp8_")
    entries = [entry for entry in layouts(found) if entry.scenario and any(name in entry.name for name in small)]
    reports = [simulate(entry.scenario, timed=False) for entry in entries if entry.scenario]
    assert {report.status for report in reports} == {"ok"}
    mine = [one for one in found if any(name in one.row.id for name in small)]
    compared = validate(mine, {layout_of(e): r for e, r in zip(entries, reports, strict=True)}).compared
    assert [(c.quantity, len(c.rows)) for c in compared] == [("allocated_peak", 3), ("reserved_peak", 3)] * 2
