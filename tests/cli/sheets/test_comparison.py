"""`rankscope compare`: what it prints and writes, and how wide."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import small
from command import Run
from fakes import illegal, report
from simcore.cli.sheets.comparison import sheet
from simcore.results.compare import Comparison, compare
from simcore.results.evidence import Evidence

FRAMEWORKS = ("megatron", "automodel", "fsdp2")
EP = {"dp_shard": 4, "ep": 2}
SERVE = ("name: served\nworkload: serve\nmodel: llama-3.1-8b\nframework: fsdp2\ntopology: dgx-h100\n"
         "generation: {engine: vllm, tp: 1, max_model_len: 2048}\n")


def lines(both: Comparison, width: int = 80) -> list[str]:
    return [str(part) for part in sheet(both, width)]


def line(both: Comparison, what: str) -> list[str]:
    return next(one.split() for one in lines(both) if one.strip().startswith(what))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """One scenario file a framework, named as it is."""
    for framework in FRAMEWORKS:
        document = small.scenario(framework, EP).normalised() | {"name": framework}
        (tmp_path / f"{framework}.yaml").write_text(json.dumps(document), encoding="utf-8")
    return [f"{framework}.yaml" for framework in FRAMEWORKS]


def test_of_two_results_the_difference_follows() -> None:
    both = compare(report("a", 40), report("b", 50))
    assert line(both, "needed at the peak") == ["needed", "at", "the", "peak", "40.00", "GiB", "50.00", "GiB", "+10.00",
                                                "GiB", "+25%"]
    assert line(both, "verdict") == ["verdict", "fits", "fits"]


def test_rows_of_the_device_add_up() -> None:
    """Reserved memory holds the allocator's cache and may be above what is needed: it is the last row, and says so."""
    roomy = [report(name, peak).model_copy(update={"capacity_bytes": 80 * 2**30, "headroom_bytes": (80 - peak) * 2**30})
             for name, peak in (("a", 40), ("b", 50))]
    every = [one.strip().split("  ")[0] for one in lines(compare(*roomy))]
    first = every.index("device")
    assert every[first + 1:first + 5] == ["capacity", "needed at the peak", "left", "reserved, cache too"]
    assert "reserved" not in every[first + 5:]


def test_equal_results_are_told() -> None:
    told = "no difference: all numbers and settings are equal"
    assert told in lines(compare(report("a"), report("b")))
    assert told in lines(compare(report("a"), report("b"), report("c")))
    assert told not in lines(compare(report("a", 40), report("b", 40.01)))
    assert told not in lines(compare(report("a"), report("b"), report("c", step_s=5)))


def test_of_three_results_each_has_its_share_of_the_first() -> None:
    every = compare(report("a", 40), report("b", 60), report("c", 40, step_s=5))
    assert line(every, "needed at the peak")[4:] == ["40.00", "GiB", "60.00", "GiB", "+50%", "40.00", "GiB", "="]
    assert line(every, "step") == ["step", "500", "ms", "500", "ms", "=", "5", "s", "x10"]
    assert line(compare(report("a", step_s=0.001), report("b"), report("c", step_s=50)), "step")[5:] == [
        "x500", "50", "s", ">x999"]


def test_a_small_difference_is_a_sign() -> None:
    every = compare(report("a", 40), report("b", 40.01), report("c", 40.3))
    assert line(every, "needed at the peak")[4:] == ["40.00", "GiB", "40.01", "GiB", "~", "40.30", "GiB", "+1%"]


def test_an_engine_has_its_rates(ran: Run, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(SERVE, encoding="utf-8")
    completed = ran("compare", "serve.yaml", "--set", "generation.kv_dtype=fp8", "--json")
    rates = {row["what"]: row["percent"] for row in json.loads(completed.out)[0]["rates"]}
    assert rates["tokens in the cache"] == pytest.approx(100, abs=1)
    assert rates["decoded tokens/s"] > 0


def test_a_verdict_is_the_word_of_the_report() -> None:
    unsure = report("b").model_copy(update={"verdict": "unsure"})  # a value that a later version adds
    assert line(compare(report("a", 100), unsure, illegal("c")), "verdict") == ["verdict", "oom", "unsure", "illegal"]


def test_what_a_result_lacks_is_a_dash_without_a_share() -> None:
    every = compare(report("a"), illegal("b"), report("c"))
    assert line(every, "tokens/s per GPU")[3:] == ["12,346", "-", "12,346", "="]


@pytest.mark.parametrize("number", [2, 3])
def test_80_columns_are_enough(number: int) -> None:
    name = "nano-with-a-long-name-that-a-sweep-made[mesh.ep=4,training.seq_len=131072]"
    every = compare(*(report(f"{name}{n}", 40 + n) for n in range(number)))
    assert max(map(len, lines(every))) <= 80
    whole = "".join(part.replace(" ", "") for part in lines(every)[:9])
    assert whole.count("131072") == number


def test_more_results_than_fit_follow_in_another_table_with_the_first() -> None:
    names = [f"r{n}" for n in range(6)]
    every = compare(*(report(name) for name in names))
    heads = [one.split() for one in lines(every) if one.startswith(" " * 20) and "r0" in one]
    assert heads == [["r0", "r1", "r2"], ["r0", "r3", "r4"], ["r0", "r5"]]
    assert len([one for one in lines(every, 200) if "r0" in one]) == 1


def test_three_frameworks_are_compared(ran: Run, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    completed = ran("compare", *files)
    assert (completed.code, completed.err) == (0, "")
    assert max(map(len, completed.out.splitlines())) <= 80
    text = " ".join(completed.out.split())
    for word in ("all_gather", "expert_dp NVLink", "exposed communication", "MFU", "USD per M tokens", "mamba"):
        assert word in text
    assert "differs by default: dispatcher alltoall | deepep | alltoall;" in text
    assert "asked differently: framework megatron | automodel | fsdp2" in text
    assert "count FLOPs as: megatron-bridge" in text


def test_like_makes_defaults_equal_and_says_where_not(ran: Run, files: list[str]) -> None:
    completed = ran("compare", *files, "--like", "automodel")
    assert (completed.code, completed.err) == (0, "")
    assert "fsdp2: keeps training.loss hf, not masked_fp32: not yet" in completed.out
    defaults = next(one for one in completed.out.splitlines() if one.startswith("differs by default"))
    assert "params" not in defaults
    assert "dispatcher deepep | deepep | alltoall" in defaults


def test_what_like_cannot_change_is_in_every_form_of_the_answer(ran: Run, files: list[str], tmp_path: Path) -> None:
    completed = ran("compare", *files, "--like", "automodel", "--json", "--html", "page.html", "--csv", "rows.csv")
    kept = [one for one in json.loads(completed.out)[0]["kept"] if one["key"] == "training.loss"]
    assert [(one["place"], one["value"], one["wanted"]) for one in kept] == [(0, "megatron", "masked_fp32"),
                                                                             (2, "hf", "masked_fp32")]
    assert kept[1]["reason"].startswith("not yet: masked_fp32 under fsdp2")
    assert "rankscope: fsdp2: keeps training.loss hf, not masked_fp32: not yet" in completed.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Kept, though asked to be alike" in page
    assert kept[1]["reason"] in page
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if (row["section"], row["what"]) == ("kept", "training.loss")]
    assert [[bool(row[name]) for name in FRAMEWORKS] for row in rows] == [[True, False, False], [False, False, True]]
    assert rows[1]["fsdp2"] == f"keeps training.loss hf, not masked_fp32: {kept[1]['reason']}"


def test_evidence_is_a_row_with_its_words_below() -> None:
    known = Evidence(kind="recipe", layout_class="fsdp2", class_runs=3)
    both = compare(report("a").model_copy(update={"evidence": known}), report("b"))
    assert line(both, "evidence") == ["evidence", "recipe", "-"]
    assert lines(both)[-1] == "evidence: recipe = shipped as a recipe, no measured run published"
    assert not any(one.startswith("evidence") for one in lines(compare(report("a"), report("b"))))


def test_one_file_with_a_key_changed(ran: Run, files: list[str]) -> None:
    completed = ran("compare", files[0], "--set", "mesh.ep=4", "--json")
    assert (completed.code, completed.err) == (0, "")
    found: dict[str, Any] = json.loads(completed.out)[0]
    assert (found["a"], found["b"]) == ("megatron", "megatron[mesh.ep=4]")
    assert [row["key"] for row in found["asked"]] == ["mesh.ep"]
    assert Comparison.model_validate(found).names == ("megatron", "megatron[mesh.ep=4]")


def test_a_page_and_a_spreadsheet_are_written(ran: Run, files: list[str], tmp_path: Path) -> None:
    completed = ran("compare", *files, "--html", "page.html", "--csv", "rows.csv")
    assert completed.code == 0
    assert "Side by side" in (tmp_path / "page.html").read_text(encoding="utf-8")
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["section", "what", "unit", *FRAMEWORKS]
    assert {row["section"] for row in rows} == {"verdict", "room", "peak", "at_rest", "traffic", "links", "time",
                                               "parts", "rates"}
    assert all(float(row["fsdp2"]) >= 0 for row in rows if row["section"] == "links")


def test_results_are_compared_with_scenarios(ran: Run, files: list[str], tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(ran("run", files[2], "--json").out, encoding="utf-8")
    completed = ran("compare", "old.json", files[2], "--html", "page.html")
    assert completed.code == 0
    assert "differs" not in completed.out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "A: memory of ranks" in page
    assert "B: memory of ranks" in page


@pytest.mark.parametrize(("words", "told"), [
    (["fsdp2.yaml"], "compare takes two or more scenarios or results, this has 1"),
    (["fsdp2.yaml", "megatron.yaml", "--name", "x"], "--name: 'x' is not in fsdp2.yaml, megatron.yaml"),
    (["fsdp2.yaml", "megatron.yaml", "--like", "x"], "--like: 'x': expected one of fsdp2, megatron"),
    (["fsdp2.yaml", "--set", "mesh.ep=3"], "ep=3"),
    (["fsdp2.yaml", "--set", "mesh.epp=3"], "unknown key"),
    (["fsdp2.yaml", "none.yaml"], "none.yaml: no such file"),
    (["fsdp2.yaml", "bad.json"], "bad.json: is no result"),
    (["fsdp2.yaml", "serve.yaml"], "expected scenarios of one workload, got train (fsdp2), serve (served)"),
    (["fsdp2.yaml", "megatron.yaml", "--csv", "no/such/folder.csv"], "no/such/folder.csv"),
])
def test_bad_input_is_one_line(ran: Run, files: list[str], tmp_path: Path, words: list[str], told: str) -> None:
    assert files
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    (tmp_path / "serve.yaml").write_text(SERVE, encoding="utf-8")
    completed = ran("compare", *words)
    assert completed.code == 2
    assert completed.err.count("\n") == 1
    assert told in completed.err
