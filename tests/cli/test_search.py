"""`rankscope search`: table, JSON, files of the best, exit codes, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkout import ROOT
from command import Run

SCENARIO = """\
name: mine
model: llama-3.2-1b
topology: rtx-4090
framework: ddp
training: {seq_len: 2048, global_batch_size: 8, method: lora}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def test_table_and_json_say_the_same(ran: Run, file: str) -> None:
    shown = ran("search", file, "--gpus", "1,2", "--top", "3", "-j", "1")
    assert shown.code == 0
    (found,) = json.loads(ran("search", file, "--gpus", "1,2", "--top", "3", "-j", "1", "--json").out)
    assert len(found["best"]) == 3
    assert f"{found['counts']['candidates']:,} layouts" in shown.out
    for one in found["best"]:
        assert f"{one['tokens_per_s_per_gpu']:,.0f}" in shown.out


def test_written_scenarios_give_the_numbers_of_the_ranking(ran: Run, file: str, tmp_path: Path) -> None:
    (found,) = json.loads(ran("search", file, "--gpus", "2", "--top", "2", "-j", "1", "--json",
                              "--write", str(tmp_path / "best")).out)
    again = json.loads(ran("run", str(tmp_path / "best"), "--json").out)
    assert [report["time"]["step_s"] for report in again] == [one["step_s"] for one in found["best"]]
    assert [report["ranks"][0]["peak"]["device_bytes"] for report in again] == [
        one["peak_bytes"] for one in found["best"]]


def test_a_condition_and_a_free_key(ran: Run, file: str) -> None:
    (found,) = json.loads(ran("search", file, "--free", "training.seq_len=512,1024", "-j", "1", "--json",
                              "--where", "training.seq_len < 1000").out)
    assert {one["keys"]["training.seq_len"] for one in found["best"]} == {512}


def test_nothing_fits_is_exit_one(ran: Run, file: str) -> None:
    told = ran("search", file, "--set", "limits.usable_memory=1 GiB", "-j", "1")
    assert told.code == 1
    assert "no layout fits" in told.out


@pytest.mark.parametrize(("arguments", "says"), [
    (["--gpus", "two"], "expected numbers"), (["--gpus", "0"], "expected 1 to"), (["--gpus", "9-3"], "expected 1 to"),
    (["--gpus", "99999999999"], "expected numbers"), (["--where", "mesh.tp <="], "expected a condition"),
    (["--where", "mesh.nothing == 1"], "no key of a scenario"), (["--where", "open('x')"], "got a call"),
    (["--free", "training.seq_len"], "expected values"), (["--free", "training.seq_len=[1"], "--free"),
    (["--free", "nothing.here=1,2"], "nothing"),
    (["--framework", "jax"], "rankscope: --framework jax: unknown framework 'jax'"),
    (["--topology", "moon"], "rankscope: --topology moon: no topology 'moon'"),
    (["--free", "mesh.xp"], "rankscope: --free mesh.xp: unknown key 'mesh.xp'; the keys here are pp, dp_replicate"),
    (["--free", "mesh.xp=1,2"], "rankscope: --free mesh.xp: unknown key 'mesh.xp'"),
    (["--free", "training.bach"], "rankscope: --free training.bach: unknown key"),
    (["--set", "search.framework=[jax]"], "rankscope: --set search.framework=[jax]: unknown framework 'jax'"),
    (["--allow", "fp2"], "expected bf16-params"), (["--pareto", "beauty"], "expected tokens"),
    (["--where", "mesh.tp == 7"], "no layout"), (["--free", "mesh.tp=2", "--gpus", "2"], "no layout is legal"),
])
def test_bad_input_is_one_line(ran: Run, file: str, arguments: list[str], says: str) -> None:
    told = ran("search", file, "-j", "1", *arguments)
    assert told.code == 2
    assert says in told.err
    assert len(told.err.strip().splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_one_line(ran: Run, file: str) -> None:
    told = ran("search", file, "-j", "1", "--write", file)
    assert told.code == 2
    assert len(told.err.strip().splitlines()) == 1


def test_the_block_of_the_file_is_the_space_and_options_go_before_it(ran: Run, tmp_path: Path) -> None:
    file = tmp_path / "block.yaml"
    file.write_text(SCENARIO + "search: {gpus: [2], free: {mesh: [], training.micro_batch_size: [1, 2]}, "
                    "where: [mesh.dp_replicate >= 1], objective: peak, pareto: [tokens, step]}\n", encoding="utf-8")
    (found,) = json.loads(ran("search", str(file), "-j", "1", "--json").out)
    assert found["objectives"] == ["peak", "tokens", "step"]
    assert {one["num_gpus"] for one in found["best"]} == {2}
    assert {one["keys"]["training.micro_batch_size"] for one in found["best"]} <= {1, 2}
    (other,) = json.loads(ran("search", str(file), "-j", "1", "--json", "--gpus", "1", "--objective", "step").out)
    assert other["objectives"] == ["step", "tokens"]
    assert {one["num_gpus"] for one in other["best"]} == {1}
    assert ran("run", str(file)).code == 0


@pytest.mark.parametrize("block", [
    "{gpus: [0]}", "{gpu: [1]}", "{free: {mesh: 1}}", "{where: [1]}", "{objective: beauty}", "{pareto: [x]}",
    "{allow: [fp2]}", "{where: ['mesh.tp <']}", "7"])
def test_a_wrong_block_is_one_line(ran: Run, tmp_path: Path, block: str) -> None:
    file = tmp_path / "block.yaml"
    file.write_text(f"{SCENARIO}search: {block}\n", encoding="utf-8")
    told = ran("search", str(file), "-j", "1")
    assert told.code == 2
    assert len(told.err.strip().splitlines()) == 1


def test_a_phase_that_does_not_fit_decides_too(ran: Run, tmp_path: Path) -> None:
    """Loading under zero3 takes the model whole before it is cut; the evaluation keeps logits on the host."""
    loads, keeps = tmp_path / "loads.yaml", tmp_path / "keeps.yaml"
    loads.write_text("name: loads\nmodel: mixtral-8x7b\nframework: zero3\nimplementation: hf\ntopology: dgx-h100\n"
                     "mesh: {dp_shard: 4}\ntraining: {method: qlora, seq_len: 2048, recompute: full}\n",
                     encoding="utf-8")
    keeps.write_text("name: keeps\nmodel: llama-3-8b\nframework: ddp\ntopology: h100-1gpu\n"
                     "training: {method: lora, seq_len: 4096, recompute: full}\n"
                     "evaluation: {micro_batch_size: 8, sequences: 64, keep_logits: true, accumulation_steps: 1}\n",
                     encoding="utf-8")
    for file, phase in ((loads, "load"), (keeps, "evaluation")):
        told = ran("run", str(file), "--no-advise")
        assert told.code == 1
        assert f"in a step, but oom in {phase}" in told.out.lower()
        assert ran("search", str(file), "--free", "training.micro_batch_size=1", "-j", "1").code == 1
        longest = json.loads(ran("solve", str(file), "--for", "sequence", "--json").out)[0]
        assert longest["value"] is None or longest["value"] < 4096


def test_gpus_of_engines_are_told_beside_those_that_train(ran: Run) -> None:
    file = str(ROOT / "scenarios/nano-grpo/full-separate.yaml")
    arguments = ("search", file, "--gpus", "16", "--free", "mesh.ep=8", "--top", "1", "-j", "1")
    shown = ran(*arguments).out
    assert "GPUs, engines'" in shown
    assert " 16 + 8 " in shown
    (found,) = json.loads(ran(*arguments, "--json", "--where", "num_gpus == 16").out)
    assert (found["best"][0]["num_gpus"], found["best"][0]["engine_gpus"]) == (16, 8)
