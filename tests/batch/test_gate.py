"""Findings of gates on refused answers, and on a baseline that fits the run only in part."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import small
from simcore.batch.gate import Decided, gates, github, junit, unmatched
from simcore.batch.run import Outcome
from simcore.errors import InputError
from simcore.inputs.loading import changed
from simcore.results.report import Report
from simcore.simulate import check, simulate

REFUSED = check(small.scenario("fsdp2", {"dp_shard": 6, "ep": 3}))
FITS = check(small.scenario("fsdp2", {"dp_shard": 6}))


def _stored(path: Path, *reports: Report) -> Path:
    path.write_text("".join(report.model_dump_json() + "\n" for report in reports), encoding="utf-8")
    return path


def test_adapters_that_never_learn_are_told_and_pass() -> None:
    asked = small.scenario("fsdp2", {"dp_shard": 2}, method="lora",
                           lora={"rank": 8, "target_modules": ["out_proj", "gate_proj"]})
    found = [f for gate in gates() for f in gate(Outcome(simulate(asked, timed=False), "a.yaml:1", 0))]
    assert [(f.kind, f.code) for f in found] == [("adapters", 0)] * 2
    assert "gate_proj" in found[0].message
    assert "mixer.out_proj in 2 layers" in found[1].message
    suite = ElementTree.fromstring(junit(["small"], found))  # noqa: S314 - we wrote it
    assert [child.tag for case in suite for child in case] == ["system-out"] * 2
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "0")


@pytest.mark.parametrize(("counts_as", "code", "tag"), [("fits", 0, "system-out"), ("oom", 1, "failure")])
def test_an_unsure_verdict_counts_as_asked(counts_as: Decided, code: int, tag: str) -> None:
    roomy = small.scenario("fsdp2", {"dp_shard": 4}, seq_len=2048)
    limit = simulate(roomy, timed=False).highest_bytes
    asked = changed(roomy, {"limits.usable_memory": f"{limit} B"})
    outcome = Outcome(simulate(asked, timed=False), "a.yaml:1", 0)
    (told,) = [finding for gate in gates(unsure=counts_as) for finding in gate(outcome)]
    assert (told.kind, told.code) == ("unsure", code)
    assert "measured runs of such layouts: " in told.message
    suite = ElementTree.fromstring(junit(["small"], [told]))  # noqa: S314 - we wrote it
    assert [child.tag for case in suite for child in case] == [tag]


def test_what_a_sweep_made_and_a_framework_refuses_is_told_and_passes() -> None:
    (told,) = [finding for gate in gates() for finding in gate(Outcome(REFUSED, "a.yaml:1", 0))]
    assert (told.kind, told.code) == ("refused", 0)
    assert told.message.startswith("illegal: ")
    assert github([told]).startswith("::notice ")
    suite = ElementTree.fromstring(junit(["small"], [told]))  # noqa: S314 - we wrote it
    assert [child.tag for case in suite for child in case] == ["skipped"]
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "1")


def test_the_same_layout_written_by_hand_is_a_problem() -> None:
    (told,) = [finding for gate in gates() for finding in gate(Outcome(REFUSED, "a.yaml:1", 2))]
    assert (told.kind, told.code) == ("problem", 2)


@pytest.mark.parametrize(("before", "after", "message"), [
    ("fits", "unsure", "no longer surely fits since the baseline"),
    ("unsure", "oom", "no longer fits since the baseline"), ("unsure", "fits", None), ("oom", "unsure", None)])
def test_a_worse_verdict_is_a_regression(tmp_path: Path, before: str, after: str, message: str | None) -> None:
    measured = simulate(small.scenario("fsdp2", {"dp_shard": 4}), timed=False)
    old, new = (measured.model_copy(update={"verdict": word}) for word in (before, after))
    compared = gates(baseline=_stored(tmp_path / "results.jsonl", old))[-1]
    assert [f.message for f in compared(Outcome(new, "", 0))] == ([message] if message else [])


def test_a_baseline_says_what_it_cannot_compare(tmp_path: Path) -> None:
    path = _stored(tmp_path / "results.jsonl", FITS, FITS.model_copy(update={"name": "old"}))
    assert unmatched(["small"], path) == "1 of it not run, such as 'old'"
    assert unmatched(["new", "old", "small"], path) == "1 not in it, such as 'new'"
    assert unmatched(["old", "small"], path) == ""


def test_a_baseline_of_other_scenarios_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        unmatched(["renamed"], _stored(tmp_path / "results.jsonl", FITS))


def test_the_highest_draw_is_what_fills_a_device() -> None:
    routing = {"seed": 0, "draws": 20, "concentration": 0.1}
    drawn = simulate(small.scenario("megatron", {"dp_shard": 4, "ep": 4}, routing=routing, seq_len=1024), timed=False)
    assert drawn.peak_rank is not None
    assert drawn.peak_rank.peak is not None
    assert drawn.highest_bytes is not None
    capacity = 2 * (drawn.peak_rank.peak.device_bytes + drawn.highest_bytes)  # a quarter lies between both
    outcome = Outcome(drawn.model_copy(update={"capacity_bytes": capacity}), "a.yaml:1", 0)
    (told,) = [finding for gate in gates("25%") for finding in gate(outcome)]
    assert told.kind == "fill"
    assert "in the highest draw" in told.message
    balanced = outcome.report.model_copy(update={"drawn": None})
    assert [finding for gate in gates("25%") for finding in gate(Outcome(balanced, "a.yaml:1", 0))] == []


def test_a_host_that_cannot_hold_what_is_read_fails_a_gate() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}), timed=False)
    assert report.host is not None
    small_host = report.host.model_copy(update={"phases": tuple(
        phase.model_copy(update={"host_verdict": "oom" if phase.phase == "load" else "fits"})
        for phase in report.host.phases)})
    outcome = Outcome(report.model_copy(update={"host": small_host}), "a.yaml:1", 0)
    (told,) = [finding for gate in gates() for finding in gate(outcome)]
    assert (told.kind, told.code) == ("host", 1)
    assert told.message.startswith("load: does not fit on the host")


@pytest.mark.parametrize(("phase", "kinds"), [("evaluation", ["phase"]), ("first_step", [])])
def test_a_phase_that_is_asked_for_and_does_not_fit_fails_a_gate(phase: str, kinds: list[str]) -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}), timed=False)
    assert report.host is not None
    step = next(one for one in report.host.phases if one.phase == "first_step")
    full = step.model_copy(update={"phase": phase, "device_verdict": "oom"})
    host = report.host.model_copy(update={"phases": (full,)})
    outcome = Outcome(report.model_copy(update={"host": host}), "a.yaml:1", 0)
    found = [finding for gate in gates() for finding in gate(outcome)]
    assert [(finding.kind, finding.code) for finding in found] == [(kind, 1) for kind in kinds]


def test_a_share_that_is_no_number_is_told_as_given() -> None:
    with pytest.raises(InputError, match="expected a share such as 92%"):
        gates(max_fill="abc")
