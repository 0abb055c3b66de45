"""The end of a batch: what of many results a terminal shows, and what is told once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Run

SWEPT = """\
name: many
model: llama-tiny
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 8}
training: {seq_len: 8, global_batch_size: 8}
sweep: {training.seq_len: [8, 16, 24, 32, 40, 48], mesh.ep: [1, 2], training.recompute: [none, full]}
"""


@pytest.fixture
def many(ran: Run, tmp_path: Path) -> Path:
    """A sweep of 24, half of it refused, that is in a folder."""
    (tmp_path / "many.yaml").write_text(SWEPT)
    (tmp_path / "kind.yaml").write_text(SWEPT.replace("mesh.ep: [1, 2], ", ""))
    assert ran("run", "many.yaml", "-o", "out", "-j", "1").code == 0
    return tmp_path


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.lstrip().startswith("many[")]


def test_of_many_results_in_a_folder_the_best_are_shown(ran: Run, many: Path) -> None:
    told = ran("run", "many.yaml", "-o", "out")
    assert told.code == 0
    assert told.out.startswith("the 10 best of 24 by tokens/s per GPU")
    assert "24 scenarios: 12 fits, 12 illegal\n  12 illegal: ep 2 on a model without experts" in told.out
    assert "many[training.seq_len=48" in lines(told.out)[0]
    assert "illegal" not in told.err


def test_without_a_folder_all_are_shown(ran: Run, many: Path) -> None:
    assert "best of" not in ran("run", "kind.yaml").out


def test_a_user_chooses_what_is_shown(ran: Run, many: Path) -> None:
    told = ran("run", "many.yaml", "-o", "out", "--sort=-seq_len", "--fits", "--top", "3", "--columns",
               "training.seq_len,verdict,peak_bytes,step_s")
    rows = [line.split() for line in told.out.splitlines()]
    assert rows[0] == ["training.seq_len", "verdict", "peak_bytes", "step_s"]
    assert [row[0] for row in rows[2:5]] == ["48", "48", "40"]
    assert (rows[2][1], rows[2][3], rows[2][5]) == ("fits", "MiB", "ms")
    assert " ".join(rows[5]) == "24 scenarios: 12 fits, 12 illegal"


def test_json_has_what_was_chosen(ran: Run, many: Path) -> None:
    asked = ("run", "many.yaml", "-o", "out", "--json")
    assert len(json.loads(ran(*asked).out)) == 24
    first = json.loads(ran(*asked, "--sort", "step_s", "--top", "1").out)
    assert [one["time"]["step_s"] for one in first] == [min(one["time"]["step_s"] for one in json.loads(
        ran(*asked, "--fits").out))]
    assert json.loads(ran(*asked, "--top", "1", "--columns", "verdict,seq_len").out) == [
        {"verdict": "fits", "training.seq_len": 8}]


def test_what_many_scenarios_do_wrong_is_told_once(ran: Run, many: Path) -> None:
    told = ran("run", "many.yaml", "-o", "out", "--json").err.splitlines()
    assert [line for line in told if "illegal" in line] == [
        "rankscope: many.yaml:7: 12 scenarios, the first many[training.seq_len=8,mesh.ep=2,training.recompute=none]: "
        "illegal: ep 2 on a model without experts: there is nothing to place on it [expert parallel: DTensor Shard(0) "
        "of the experts]"]


def test_none_that_fits_is_told(ran: Run, many: Path) -> None:
    told = ran("run", "many.yaml", "--fits", "--set", "sweep={mesh.ep: [2, 4]}")
    assert told.out.startswith("2 scenarios: 2 illegal\n")


@pytest.mark.parametrize("arguments", [("--sort", "nope"), ("--columns", "name,nope"), ("--top", "0")])
def test_wrong_choices_are_one_line_before_anything_runs(ran: Run, many: Path, arguments: tuple[str, str]) -> None:
    told = ran("run", "kind.yaml", "-o", "none", *arguments)
    assert (told.code, told.out, len(told.err.splitlines())) == (2, "", 1)
    assert not (many / "none").exists()
