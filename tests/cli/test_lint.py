"""`rankscope lint`: text, JSON, annotations, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import SCENARIO, Run
from simcore.lint.examples import with_lines

NOTE = "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj]\nlora_modules_to_save: [lm_head]\n"
WARNING = "gradient_checkpointing_kwargs: {use_reentrant: false}\n"
ERROR = "context_parapllel_size: 2\n"


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "tune.yaml").write_text(with_lines("axolotl", f"{WARNING}{ERROR}"), encoding="utf-8")
    return "tune.yaml"


def test_a_finding_is_three_lines_and_the_last_counts(ran: Run, recipe: str) -> None:
    shown = ran("lint", recipe)
    assert shown.code == 1
    lines = shown.out.splitlines()
    assert lines[0].startswith("tune.yaml:9: warning checkpointing-settings-without-checkpointing: ")
    assert lines[3].startswith("tune.yaml:10: error misspelt-key: context_parapllel_size ")
    assert [line.split(":")[0] for line in lines[4:6]] == ["    instead", "    source"]
    assert lines[-1] == "1 error, 1 warning, 0 notes in 1 file"


@pytest.mark.parametrize(("lines", "fail_on", "code"), [
    ("", None, 0), (NOTE, None, 0), (WARNING, None, 1), (ERROR, None, 1), (NOTE, "note", 1), (WARNING, "error", 0),
    (ERROR, "error", 1)])
def test_the_exit_code_is_that_of_the_worst_finding(lines: str, fail_on: str | None, code: int, ran: Run,
                                                    recipe: str) -> None:
    Path(recipe).write_text(with_lines("axolotl", lines), encoding="utf-8")
    assert ran("lint", recipe, *(("--fail-on", fail_on) if fail_on else ())).code == code


def test_annotations_name_file_line_and_code(ran: Run, recipe: str) -> None:
    shown = ran("lint", recipe, "--format", "github")
    first, second = shown.out.splitlines()
    assert first.startswith("::warning file=tune.yaml,line=9,title=checkpointing-settings-without-checkpointing::")
    assert second.startswith("::error file=tune.yaml,line=10,title=misspelt-key::context_parapllel_size ")
    assert "instead: context_parallel_size: 2" in second


def test_json_has_an_object_for_each_file(ran: Run, recipe: str) -> None:
    Path("own.yaml").write_text(SCENARIO, encoding="utf-8")
    first, second = json.loads(ran("lint", recipe, "own.yaml", "--json").out)
    assert (first["path"], first["format"], len(first["findings"])) == ("tune.yaml", "axolotl", 2)
    assert set(first["findings"][0]) == {"code", "severity", "where", "message", "instead", "source"}
    assert (second["format"], second["findings"], second["problems"]) == ("scenario", [], [])


def test_files_beside_a_recipe_are_named_by_an_option(ran: Run, recipe: str) -> None:
    Path(recipe).write_text(with_lines("axolotl", ""), encoding="utf-8")
    Path("run.sh").write_text("accelerate launch --num_processes 4 -m axolotl.cli.train tune.yaml\n", encoding="utf-8")
    assert ran("lint", recipe, "--with", "run.sh").code == 0
    shown = ran("lint", recipe, "--with", "run.sh", "--gpus", 8)
    assert shown.code == 1
    assert "run.sh:1: error launch-processes: " in shown.out


@pytest.mark.parametrize("named", ["missing.yaml", "other.yaml"])
def test_a_file_that_cannot_be_judged_is_wrong_input(named: str, ran: Run, recipe: str) -> None:
    Path("other.yaml").write_text("on: push\n", encoding="utf-8")
    shown = ran("lint", recipe, named)
    assert shown.code == 2
    assert "misspelt-key" in shown.out
    assert shown.err.startswith(f"rankscope: {named}: ")
