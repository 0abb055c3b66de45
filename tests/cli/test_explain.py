"""`rankscope explain`: bars, a line of memory, and the tree of a number."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import small
from rl.test_workload import GRPO
from simcore.cli import app as cli
from simcore.cli.explain import tree
from simcore.simulation.explanation import Step


def test_a_tree_is_drawn_and_harmless() -> None:
    whole = Step(words="a\x1b[31m", amount="3", inside=(
        Step(words="b", amount="1", how="x", inside=(Step(words="c", amount="1"),)), Step(words="d", amount="2",
                                                                                         source="s")))
    assert list(tree(whole)) == ["3  a\ufffd[31m", "\u251c\u2500 1  b  = x", "\u2502  \u2514\u2500 1  c",
                                 "\u2514\u2500 2  d  [s]"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["rankscope", "explain", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(small.scenario("fsdp2", {"dp_shard": 4}).normalised()), encoding="utf-8")
    return path


def test_the_command_explains(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, file) == 0
    out = capsys.readouterr().out
    assert "ranks 0-3 at their highest" in out
    assert "F forward" in out
    assert call(monkeypatch, file, "trainable", "--json") == 0
    (step,) = json.loads(capsys.readouterr().out)
    assert "trainable parameters" in step["words"]
    assert call(monkeypatch, file, "step", "--rank", 2) == 0
    assert "a step, on ranks 0-3" in capsys.readouterr().out


def test_wrong_input_is_one_line(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
                                 ) -> None:
    for arguments in ((file, "--rank", 99), ("no.yaml",), (file, "--set", "sweep={mesh.dp_shard: [2, 4]}"),
                      (file, "--set", "mesh.tp=3"), (file, "weather")):
        assert call(monkeypatch, *arguments) == 2
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("changed", "key"), [({"mesh": {"dp_shard": 4, "tp": 3}}, "tp"),
                                              ({"implementation": "nobody"}, "implementation")])
def test_a_refused_scenario_is_told_with_its_line(file: Path, changed: dict[str, Any], key: str,
                                                  monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(json.loads(file.read_text(encoding="utf-8")) | changed, indent=1)
    file.write_text(text, encoding="utf-8")
    number = 1 + next(n for n, line in enumerate(text.splitlines()) if f'"{key}"' in line)
    assert call(monkeypatch, file) == 2
    assert f"a.yaml:{number}" in capsys.readouterr().err


def test_a_step_with_phases_is_explained_and_its_peak_is_not(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(GRPO, indent=1), encoding="utf-8")
    assert call(monkeypatch, path, "step", "--rank", 2) == 0
    out = capsys.readouterr().out
    places = [out.index(f" {phase}, from ") for phase in ("refit", "generation", "logprob", "reference", "training")]
    assert places == sorted(places)
    for arguments, told in (((path, "peak"), "expected train, or `explain ... step`"),
                            ((path, "step", "--rank", 8), "no rank 8: there are 8")):
        assert call(monkeypatch, *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_what_has_no_step_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: s\nworkload: serve\nmodel: llama-tiny\ntopology: dgx-h100\n"
                    "generation: {max_model_len: 16}\n", encoding="utf-8")
    assert call(monkeypatch, path) == 2
    assert "a.yaml:2: serve: has no single step to explain" in capsys.readouterr().err
