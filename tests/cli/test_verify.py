"""`rankscope verify` with an interpreter that answers what was stored: outcomes, exit codes, bad input."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from command import Run

LAYOUT = ROOT / "tests/truth/verified/fsdp2-llama.yaml"
ANSWER: dict[str, Any] = json.loads(LAYOUT.with_suffix(".json").read_text(encoding="utf-8"))["answer"]


def interpreter(folder: Path, commands: str) -> Path:
    """A program that is run in the place of another environment's Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{commands}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def answering(folder: Path, answer: object) -> Path:
    return interpreter(folder, f"cat > {folder}/asked.json; echo {shlex.quote(json.dumps(answer))}")


def test_agreement_is_exit_code_0_and_says_what_was_compared(ran: Run, tmp_path: Path) -> None:
    done = ran("verify", LAYOUT, "--python", answering(tmp_path, ANSWER))
    assert done.code == 0, done.err
    told = [line.strip() for line in done.out.splitlines()]
    assert told[0].startswith("fsdp2-llama: FSDP2 of torch (torch 2.13.0")
    assert told[1:5] == ["4 of 32 layers, rank 0 of 16", "placement    39 tensors agree",
                         "collectives  14 calls agree, in their order", "peak         agrees to the byte"]
    asked = json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))
    assert asked["case"]["world"] == 16


def test_a_wrong_scenario_is_caught_at_its_first_difference(ran: Run, tmp_path: Path) -> None:
    """Here the framework ran the mesh of the file, and the engine another one."""
    done = ran("verify", LAYOUT, "--python", answering(tmp_path, ANSWER), "--set", "mesh.dp_shard=8")
    assert done.code == 1
    assert "placement    differs first at model.embed_tokens.weight: rankscope 65,667,072" in done.out
    assert "collectives  differs first at call 1: " in done.out
    assert "peak         differs: rankscope 11,996,953,096, the framework 10,554,609,160 (+13.67%)" in done.out


def test_only_the_frameworks_side_is_given_another_value(ran: Run, tmp_path: Path) -> None:
    ran("verify", LAYOUT, "--python", answering(tmp_path, ANSWER), "--real-set", "mesh.dp_shard=8")
    assert json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))["case"]["world"] == 8


def test_json_is_a_list_of_outcomes(ran: Run, tmp_path: Path) -> None:
    (one,) = json.loads(ran("verify", LAYOUT, "--python", answering(tmp_path, ANSWER), "--json").out)
    assert one["agrees"] is True
    assert one["smaller"] == ["4 of 32 layers"]
    assert {line["subject"] for line in one["lines"]} == {"placement", "collectives", "peak"}


def test_a_refusal_is_told_in_the_frameworks_words(ran: Run, tmp_path: Path) -> None:
    done = ran("verify", LAYOUT, "--python", answering(tmp_path, {"error": "ValueError: dp_shard must be even"}))
    assert done.code == 1
    assert "refused by the framework: ValueError: dp_shard must be even" in done.out


@pytest.mark.parametrize(("commands", "told"), [
    ("cat > /dev/null; echo 'ImportError: no torch' >&2; exit 7", "ended with exit code 7: ImportError: no torch"),
    ("cat > /dev/null; echo nonsense", "ended with exit code 0: it said nothing"),
    ("cat > /dev/null; echo '{\"failed\": \"ImportError: no peft\"}'", "the environment lacks something: ImportError"),
    ("cat > /dev/null; echo '{}'", "gave no answer that can be read"),
    ("exec sleep 30", "--timeout: the framework's side took more than 1 s")])
def test_a_side_that_fails_is_one_line(ran: Run, tmp_path: Path, commands: str, told: str) -> None:
    done = ran("verify", LAYOUT, "--python", interpreter(tmp_path, commands), "--timeout", "1")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert told in line


@pytest.mark.parametrize(("more", "told"), [
    (("--set", "framework=fsdp1"), "verify has no real side for fsdp1"),
    (("--rank", "16"), "expected a rank from 0 to 15"),
    (("--set", "framework_options.use_liger_kernel=true"), "verify does not tell FSDP2 of torch framework_options.use"),
    (("--real-set", "mesh.dp_shard"), "expected key=value")])
def test_wrong_input_is_exit_code_2(ran: Run, tmp_path: Path, more: tuple[str, ...], told: str) -> None:
    done = ran("verify", LAYOUT, "--python", tmp_path / "none", *more)
    assert done.code == 2
    assert told in done.err


def test_a_python_that_is_not_there_is_one_line(ran: Run, tmp_path: Path) -> None:
    done = ran("verify", LAYOUT, "--python", tmp_path / "none")
    assert done.code == 2
    assert "cannot be run: No such file or directory" in done.err
