"""`rankscope report`: from results or scenarios to a page and figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import small
from command import Run
from simcore.inputs.scenario import Scenario
from simcore.simulate import simulate
from viz.exports.figures import letters

PNG = b"\x89PNG\r\n\x1a\n"


def asked(**training: Any) -> Scenario:
    return small.scenario("fsdp2", {"dp_shard": 4}, **training)


def results(tmp_path: Path, *scenarios: Scenario) -> Path:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(simulate(scenario).model_dump_json() + "\n" for scenario in scenarios), encoding="utf-8")
    return path


def test_a_page_of_results_shows_what_results_do_not_hold(ran: Run, tmp_path: Path) -> None:
    completed = ran("report", results(tmp_path, asked()), "-o", "page.html")
    assert (completed.code, completed.out, completed.err) == (0, "wrote page.html: 1 scenario\n", "")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("Streams over one step", "Tensors of ranks 0-3", 'class="chart map"'))


def test_the_folder_of_a_run_and_a_scenario_are_read_too(ran: Run, tmp_path: Path) -> None:
    results(tmp_path, asked(), asked(method="lora"))
    (tmp_path / "a.yaml").write_text(json.dumps(asked().normalised()), encoding="utf-8")
    assert ran("report", ".").out == "wrote report.html: 2 scenarios\n"
    assert ran("report", "a.yaml", "--set", "training.seq_len=32").out == "wrote report.html: 1 scenario\n"
    assert "&quot;seq_len&quot;: 32" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_results_of_another_version_stand_as_they_are(ran: Run, tmp_path: Path) -> None:
    path = results(tmp_path, asked())
    old = json.loads(path.read_text(encoding="utf-8"))
    old["time"]["step_s"] *= 2
    path.write_text(json.dumps(old) + "\n", encoding="utf-8")
    completed = ran("report", path)
    assert completed.code == 0
    assert "comes to other numbers" in completed.err
    assert "Streams over one step" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_advice_of_the_results_is_kept_where_they_are_simulated_again(ran: Run, tmp_path: Path) -> None:
    path = results(tmp_path, asked())
    old = json.loads(path.read_text(encoding="utf-8"))
    old["advice"] = [{"changes": {"mesh.dp_shard": 8}, "verdict": "fits", "peak_bytes": 1, "headroom_bytes": 1}]
    path.write_text(json.dumps(old) + "\n", encoding="utf-8")
    assert ran("report", path).code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "What would make it fit" in page
    assert "Streams over one step" in page


def test_a_model_that_is_gone_leaves_a_page(ran: Run, tmp_path: Path) -> None:
    path = results(tmp_path, asked())
    old = json.loads(path.read_text(encoding="utf-8"))
    old["scenario"]["model"] = "no/such/config.json"
    path.write_text(json.dumps(old) + "\n", encoding="utf-8")
    completed = ran("report", path)
    assert (completed.code, "without tensors" in completed.err) == (0, True)


@pytest.mark.parametrize(("name", "text", "told"), [
    ("no.jsonl", None, "no such file"), ("bad.jsonl", "{", "is no result"), ("bad.json", '{"a": 1}', "is no result"),
    ("a.yaml", "name: a\nmodel: x\n", "a.yaml"), ("empty", None, "no such"),
])
def test_wrong_input_is_refused_with_its_place(ran: Run, tmp_path: Path, name: str, text: str | None, told: str
                                               ) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    completed = ran("report", name)
    assert completed.code == 2
    assert told in completed.err.lower() or name in completed.err
    assert "Traceback" not in completed.err
    assert not (tmp_path / "report.html").exists()


def test_what_cannot_be_written_is_told(ran: Run, tmp_path: Path) -> None:
    completed = ran("report", results(tmp_path, asked()), "-o", "no/such/folder/page.html")
    assert (completed.code, "cannot be written" in completed.err) == (2, True)


def test_figures_are_files(ran: Run, tmp_path: Path) -> None:
    completed = ran("report", results(tmp_path, asked()), "--figures", "figures")
    names = {path.name.removeprefix("01-small-") for path in (tmp_path / "figures").iterdir()}
    assert names == {"placement.svg", "streams.svg", "memory-0.svg", "memory-0-time.svg", "memory-0-parts.svg",
                     "peak-0.svg", "traffic-0.svg"}
    assert completed.out.endswith(f"wrote {len(names)} figures to figures\n")


def test_json_is_what_was_drawn(ran: Run, tmp_path: Path) -> None:
    (made,) = json.loads(ran("report", results(tmp_path, asked()), "--json").out)
    assert made["detail"]["classes"][0]["spans"]
    assert (tmp_path / "report.html").exists()


def test_png_needs_a_folder(ran: Run, tmp_path: Path) -> None:
    completed = ran("report", results(tmp_path, asked()), "--png")
    assert (completed.code, "--figures" in completed.err) == (2, True)


def test_png_without_its_library_is_one_line(ran: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    completed = ran("report", results(tmp_path, asked()), "--figures", "figures", "--png")
    assert completed.code == 2
    assert "rankscope[figures]" in completed.err


def test_figures_are_png_too(ran: Run, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="resvg-py (the extra `figures`) is not installed: no PNG was made")
    ran("report", results(tmp_path, asked()), "--figures", "figures", "--png")
    pictures = [path.read_bytes() for path in (tmp_path / "figures").glob("*.png")]
    assert len(pictures) == 7
    assert all(one.startswith(PNG) and len(one) > 4000 for one in pictures)


def test_a_machine_without_fonts_is_told_that_pngs_have_no_letters(ran: Run, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr("viz.exports.figures._rendered", lambda svg, family: b"")  # a letter leaves no trace
    letters.cache_clear()
    completed = ran("report", results(tmp_path, asked()), "--figures", "figures", "--png")
    letters.cache_clear()
    assert "no font was found: the PNGs have no letters" in completed.out



def test_a_result_is_not_overridden(ran: Run, tmp_path: Path) -> None:
    completed = ran("report", results(tmp_path, asked()), "--set", "mesh.ep=2")
    assert completed.code == 2
    assert "--set: expected a scenario whose keys to override" in completed.err
