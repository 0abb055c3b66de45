"""`rankscope search`: table, JSON, files of the best, exit codes, bad input."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from checkout import ROOT
from command import SCENARIO, Run


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


def test_written_scenarios_find_the_files_that_the_scenario_names(ran: Run, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """A config.json and a topology beside the scenario, written to a folder elsewhere, run from a third one."""
    (tmp_path / "mine" / "parts").mkdir(parents=True)
    (tmp_path / "third").mkdir()
    for name, given in (("model.json", ROOT / "simcore/models/presets/llama-3.2-1b.json"),
                        ("parts/card.yaml", ROOT / "topologies/rtx-4090.yaml")):
        (tmp_path / "mine" / name).write_bytes(given.read_bytes())
    text = SCENARIO.replace("llama-3.2-1b", "{config: model.json, overrides: {num_hidden_layers: 4}}")
    (tmp_path / "mine" / "a.yaml").write_text(text.replace("rtx-4090", "{file: parts/card.yaml, num_nodes: 1}"))
    (tmp_path / "mine" / "b.yaml").write_text(SCENARIO.replace("name: mine", "name: other").replace(
        "llama-3.2-1b", "model.json").replace("rtx-4090", "parts/card.yaml"))
    monkeypatch.chdir(tmp_path / "third")
    told = ran("search", "../mine/a.yaml", "../mine/b.yaml", "--free", "training.micro_batch_size", "--top", "1",
               "-j", "1", "--json", "--write", "../elsewhere/deep")
    assert told.code == 0, told.err
    again = ran("run", str(tmp_path / "elsewhere/deep"), "--json")
    assert again.code == 0, again.err
    assert [report["time"]["step_s"] for report in json.loads(again.out)] == [
        found["best"][0]["step_s"] for found in json.loads(told.out)]


def test_scenarios_with_long_and_like_names_are_written_to_files_of_their_own(ran: Run, tmp_path: Path) -> None:
    for place, name in enumerate(("x" * 150, "a b", "a-b")):
        (tmp_path / f"{place}.yaml").write_text(SCENARIO.replace("name: mine", f"name: {name}"))
    told = ran("search", str(tmp_path), "--free", "training.micro_batch_size=1,2", "--top", "2", "-j", "1", "--json",
               "--write", str(tmp_path / "best"))
    written = sorted(path.name for path in (tmp_path / "best").iterdir())
    assert len(written) == sum(len(found["best"]) for found in json.loads(told.out)) == 6
    assert max(map(len, written)) < 120


CHOSEN = ("--free", "training.micro_batch_size=1,2,4", "--free", "training.recompute", "-j", "1")


def test_candidates_are_chosen_as_results_of_run(ran: Run, file: str) -> None:
    told = ran("search", file, *CHOSEN, "--sort=-peak_bytes", "--top", "3", "--columns",
               "micro_batch_size,verdict,peak_bytes,step_s")
    rows = [line.split() for line in told.out.splitlines() if line]
    assert (told.code, told.err) == (0, "")
    assert rows[0] == ["mine:", "3", "of", "6", "layouts,", "by", "-peak_bytes"]
    assert rows[1] == ["training.micro_batch_size", "verdict", "peak_bytes", "step_s"]
    sizes = [float(row[2]) for row in rows[3:6]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row[1] for row in rows[3:6]} <= {"fits", "unsure", "oom"}


def test_candidates_of_any_outcome_are_rows_of_json(ran: Run, file: str) -> None:
    asked = ("search", file, *CHOSEN, "--set", "limits.usable_memory=16 GiB", "--json")
    every = json.loads(ran(*asked, "--sort", "peak_bytes").out)
    assert len(every) == 6
    assert {"fits", "oom"} <= {row["verdict"] for row in every}
    sizes = [row["peak_bytes"] for row in every]
    assert sizes == sorted(sizes)
    fits = json.loads(ran(*asked, "--fits", "--columns", "candidate,verdict").out)
    assert [row["candidate"] for row in fits] == [
        row["candidate"] for row in sorted(every, key=lambda row: row["candidate"]) if row["verdict"] == "fits"]
    (answer,) = json.loads(ran(*asked).out)
    assert len(fits) == sum(answer["counts"][name] for name in ("ranked", "alike", "slower"))


def test_what_a_condition_excludes_is_none_that_fits(ran: Run, file: str) -> None:
    asked = ("search", file, *CHOSEN, "--where", "step_s < 0", "--json")
    assert json.loads(ran(*asked, "--fits").out) == []
    assert {row["outcome"] for row in json.loads(ran(*asked, "--sort", "candidate").out)} >= {"excluded"}


def test_columns_where_none_are_named_show_what_differs(ran: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = ran("search", file, *CHOSEN, "--fits")
    head = next(line.split() for line in told.out.splitlines() if line.startswith("outcome"))
    assert head[:3] == ["outcome", "training.micro_batch_size", "training.recompute"]
    assert "training.seq_len" not in told.out
    assert max(map(len, told.out.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [("--sort", "nope"), ("--columns", "outcome,nope"), (
    "--sort", "step_s", "--shard", "1/2", "-o", "part")])
def test_wrong_choices_are_one_line_before_a_search(ran: Run, file: str, arguments: tuple[str, ...]) -> None:
    told = ran("search", file, *CHOSEN, *arguments)
    assert (told.code, told.out, len(told.err.splitlines())) == (2, "", 1)


def test_a_condition_and_a_free_key(ran: Run, file: str) -> None:
    (found,) = json.loads(ran("search", file, "--free", "training.seq_len=512,1024", "-j", "1", "--json",
                              "--where", "training.seq_len < 1000").out)
    assert {one["keys"]["training.seq_len"] for one in found["best"]} == {512}


def test_nothing_fits_is_exit_one(ran: Run, file: str) -> None:
    told = ran("search", file, "--set", "limits.usable_memory=1 GiB", "-j", "1")
    assert told.code == 1
    assert "no layout fits" in told.out


@pytest.mark.parametrize(("arguments", "says"), [
    (["--gpus", "two"], "expected numbers"), (["--gpus", ","], "expected numbers"),
    (["--gpus", "0"], "expected 1 to"), (["--gpus", "9-3"], "expected 1 to"),
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


def commands_on(page: Path) -> list[list[str]]:
    """Arguments of the command of each layout on a page, as a shell splits them."""
    texts = re.findall(r'class="opened-rows">(.*?)</script>', page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [shlex.split(f"{data['path']} {' '.join(data['arguments'][place] for place in row['command'])}")
            for data in map(json.loads, texts) for row in data["rows"]]


def test_a_page_holds_every_layout_and_commands_that_give_its_numbers(ran: Run, file: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (found,) = json.loads(ran("search", file, "--gpus", "1,2", "-j", "1", "--set", "training.seq_len=1024",
                              "--exhaustive", "--json", "--html", str(page)).out)
    commands = commands_on(page)
    assert len(commands) == len(found["ranked"]) == found["counts"]["ranked"]
    for place in (0, len(commands) // 2, len(commands) - 1):
        (again,) = json.loads(ran("run", *commands[place], "--json").out)
        one = found["ranked"][place]
        assert again["time"]["step_s"] == one["step_s"]
        assert again["ranks"][0]["peak"]["device_bytes"] == one["peak_bytes"]
        assert again["scenario"]["training"]["seq_len"] == 1024
    assert ran("report", *commands[0], "-o", str(tmp_path / "layout.html")).code == 0


def test_commands_of_a_sweep_give_the_numbers_of_its_member(ran: Run, tmp_path: Path) -> None:
    scenario = tmp_path / "my scenario.yaml"
    scenario.write_text(f"{SCENARIO}sweep: {{training.seq_len: [512, 1024]}}\n", encoding="utf-8")
    page = tmp_path / "page.html"
    answers = json.loads(ran("search", str(scenario), "-j", "1", "--free", "training.micro_batch_size=1,2", "--json",
                             "--html", str(page)).out)
    numbers = [one["step_s"] for found in answers for one in found["ranked"]]
    again = [json.loads(ran("run", *command, "--json").out) for command in commands_on(page)]
    assert [len(reports) for reports in again] == [1] * len(numbers)
    assert [reports[0]["time"]["step_s"] for reports in again] == numbers


def test_a_page_that_cannot_be_written_is_one_line_after_the_answer(ran: Run, file: str, tmp_path: Path) -> None:
    told = ran("search", file, "-j", "1", "--html", str(tmp_path / "absent" / "page.html"))
    assert told.code == 2
    assert "layouts" in told.out
    assert len(told.err.strip().splitlines()) == 1


def test_an_earlier_search_is_drawn_without_searching_again(ran: Run, file: str, tmp_path: Path) -> None:
    kept, listed, page, again = (tmp_path / name for name in ("kept", "listed.json", "page.html", "again.html"))
    told = ran("search", file, "--gpus", "2", "-j", "1", "-o", str(kept), "--html", str(page), "--json")
    listed.write_text(told.out, encoding="utf-8")
    for source in (kept, listed):
        told = ran("report", str(source), "-o", str(again), "--figures", str(tmp_path / "figures"))
        assert told.out.startswith(f"wrote {again}: 1 search\n")
        assert again.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["01-mine-axes.svg", "01-mine-pareto-tokens-peak.svg"]
    assert json.loads(ran("report", str(kept), "-o", str(again), "--json").out) == json.loads(listed.read_text())


def test_what_cannot_be_drawn_of_a_search_is_one_line(ran: Run, file: str, tmp_path: Path) -> None:
    kept, stopped, other = tmp_path / "kept", tmp_path / "stopped", tmp_path / "other.json"
    ran("search", file, "-j", "1", "-o", str(kept))
    stopped.mkdir()
    (stopped / "journal.jsonl").write_text("{}\n", encoding="utf-8")
    answer = (kept / "answer.json").read_text(encoding="utf-8")
    other.write_text(answer.replace('"ranked"', '"sorted"', 1), encoding="utf-8")
    page = ("-o", str(tmp_path / "page.html"))
    for arguments, says in (((str(kept), file), "not both"), ((str(kept), "--set", "mesh.tp=2"), "is a search"),
                            ((str(stopped),), "not finished"), ((str(other),), "another version")):
        told = ran("report", *arguments, *page)
        assert told.code == 2
        assert says in told.err
        assert len(told.err.strip().splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_gpus_of_engines_are_told_beside_those_that_train(ran: Run) -> None:
    file = str(ROOT / "scenarios/nano-grpo/full-separate.yaml")
    arguments = ("search", file, "--gpus", "16", "--free", "mesh.ep=8", "--top", "1", "-j", "1")
    shown = ran(*arguments).out
    assert "GPUs, engines'" in shown
    assert " 16 + 8 " in shown
    (found,) = json.loads(ran(*arguments, "--json", "--where", "num_gpus == 16").out)
    assert (found["best"][0]["num_gpus"], found["best"][0]["engine_gpus"]) == (16, 8)
