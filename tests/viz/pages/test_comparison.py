"""The section of scenarios side by side, of two and of more."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import small
from reports import a_report, parsed
from simcore.results.compare import Kept
from simcore.results.evidence import Evidence
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.pages.page import render, render_comparison


def simulated(framework: str) -> Report:
    report = simulate(small.scenario(framework, {"dp_shard": 4, "ep": 2}), detail=True)
    return report.model_copy(update={"name": framework})


def text(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def tables(root: ET.Element) -> dict[str, list[list[str]]]:
    """Cells of the tables of numbers and keys, by caption."""
    section = next(e for e in root.iter("section") if e.get("class") == "versus")
    return {text(next(t.iter("caption"))): [[text(cell) for cell in row] for row in t.iter("tr")]
            for t in section.iter("table")}


FRAMEWORKS = ("megatron", "automodel", "fsdp2")


def test_three_frameworks_stand_side_by_side() -> None:
    root = parsed(render_comparison([simulated(name) for name in FRAMEWORKS]))
    found = tables(root)
    assert found["Rates and cost"][0] == ["", "A", "B", "C", "A, B, C"]
    assert {row[0] for row in found["Rates and cost"][1:]} >= {"tokens/s per GPU", "MFU", "USD per M tokens"}
    assert {"all_gather", "ep NVLink", "all over NVLink", "total"} <= {
        row[0] for row in found["Leaves the worst rank in one step"]}
    assert "exposed communication" in {row[0] for row in found["The step, by what the GPU does"]}
    assert ["dispatcher", "alltoall *", "deepep *", "alltoall *"] in found[
        "Differ by default (* chosen by the framework)"]
    words = text(root)
    assert all(f"{mark}: memory of ranks" in words and f"{mark}: streams" in words for mark in "ABC")
    assert all(f"Everything about {name}" in words for name in FRAMEWORKS)


def test_evidence_and_what_is_kept_are_tables() -> None:
    known = Evidence(kind="measured", layout_class="fsdp2", class_runs=3)
    kept = Kept(place=1, key="training.loss", value="hf", wanted="te", reason="not yet: te")
    root = parsed(render_comparison([a_report("a").model_copy(update={"evidence": known}), a_report("b")], [kept]))
    found = tables(root)
    assert found["Evidence"][1:] == [["A", "measured run of this very layout"], ["B", "\u2013"]]
    assert found["Kept, though asked to be alike"][1:] == [["B", "training.loss", "hf", "te", "not yet: te"]]
    plain = tables(parsed(render([a_report("a"), a_report("b")])))
    assert not {"Evidence", "Kept, though asked to be alike"} & plain.keys()


def test_each_has_its_share_of_the_first_and_a_bar() -> None:
    slow = a_report("slow").model_copy(update={"time": a_report().time.model_copy(update={"step_s": 0.6})})  # type: ignore[union-attr]
    root = parsed(render_comparison([a_report("a"), slow, a_report("c")]))
    step = next(row for row in tables(root)["Time"] if row[0] == "step")
    assert step[1:4] == ["300 ms", "600 ms +100%", "300 ms ="]
    bars = [e for e in root.iter("svg") if e.get("class") == "pair-bars"]
    assert {len(list(e)) for e in bars} == {3}


def test_more_of_what_is_gained_is_no_loss() -> None:
    fast = a_report("b").model_copy(update={"time": a_report().time.model_copy(  # type: ignore[union-attr]
        update={"step_s": 0.2, "tokens_per_s_per_gpu": 1500})})
    root = parsed(render_comparison([a_report("a"), fast]))
    classes = {text(row[0]): row[3][0].get("class") for row in root.iter("tr") if len(row) == 5 and len(row[3])}
    assert classes["tokens/s per GPU"] == "less-of"
    assert classes["step"] == "less-of"


def test_two_results_look_the_same_in_both_pages() -> None:
    both = [a_report("a"), a_report("b")]
    assert tables(parsed(render(both))) == tables(parsed(render_comparison(both)))


def test_one_without_an_answer_stands_beside_the_others() -> None:
    refused = a_report("b", status="illegal", verdict=None, ranks=(), time=None)
    root = parsed(render_comparison([a_report("a"), refused, a_report("c")]))
    assert "Illegal layout" in text(root)
    assert next(row for row in tables(root)["Time"] if row[0] == "step")[2] == "\u2013"
