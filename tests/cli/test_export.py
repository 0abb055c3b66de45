"""`rankscope export`: a scenario as a file for other tools; what cannot be exported is said in one line."""

from __future__ import annotations

import csv
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from checkout import ROOT
from command import Run
from simcore.cli import app as cli

SCENARIOS = ROOT / "scenarios"
SCENARIO = """
name: small
model: nemotron-3-tiny
framework: {framework}
topology: dgx-h100
mesh: {{{mesh}}}
training: {{seq_len: 64, global_batch_size: {batch}}}
"""


@pytest.fixture
def ran(ran: Run) -> Run:
    return partial(ran, "export")


def written(framework: str = "fsdp2", mesh: str = "dp_shard: 4", batch: int = 4) -> str:
    Path("small.yaml").write_text(SCENARIO.format(framework=framework, mesh=mesh, batch=batch), encoding="utf-8")
    return "small.yaml"


def test_a_trace_is_written(ran: Run) -> None:
    completed = ran("chrome", written(), "-o", "trace.json")
    assert (completed.code, completed.out, completed.err) == (0, "wrote trace.json\n", "")
    assert json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]


def test_a_folder_of_traces_is_written_twice_the_same(ran: Run) -> None:
    path = written("automodel", "dp_shard: 2, pp: 2", 8)
    assert ran("kineto", path, "-o", "traces").out == "wrote traces\n"
    texts = {file.name: file.read_text(encoding="utf-8") for file in Path("traces").iterdir()}
    assert set(texts) == {"rank0.pt.trace.json", "rank2.pt.trace.json"}
    assert ran("kineto", path, "-o", "traces").code == 0
    assert {file.name: file.read_text(encoding="utf-8") for file in Path("traces").iterdir()} == texts


def test_traces_that_lay_in_the_folder_are_told(ran: Run) -> None:
    assert ran("kineto", written(), "-o", "traces", "--rank", "2").err == ""
    assert ran("kineto", written(), "-o", "traces").err == (
        "rankscope: traces held other traces already, which readers take for ranks of this job: 1, such as"
        " rank2.pt.trace.json\n")


def test_phases_have_no_kernels_for_kineto(ran: Run) -> None:
    completed = ran("kineto", str(SCENARIOS / "nano-ep4" / "nemo-rl-dpo.yaml"), "-o", "traces", "--set", "sweep=null")
    assert completed.code == 2
    assert "not yet: dpo, whose phases have no kernels" in completed.err
    assert not Path("traces").exists()


def test_a_folder_that_is_a_file_is_a_wrong_input(ran: Run) -> None:
    completed = ran("kineto", written(), "-o", "small.yaml")
    assert completed.code == 2
    assert "small.yaml: cannot be written" in completed.err


def test_ranks_can_be_asked_for(ran: Run) -> None:
    path = written("automodel", "dp_shard: 2, pp: 2", 8)
    assert ran("kineto", path, "-o", "traces", "--rank", "3", "--rank", "1").code == 0
    assert sorted(file.name for file in Path("traces").iterdir()) == ["rank1.pt.trace.json", "rank3.pt.trace.json"]
    assert ran("chrome", path, "-o", "trace.json", "--rank", "3").code == 0
    events = json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {3}
    assert events[0]["args"]["name"] == "rank 3, stands for 2-3"


def test_a_rank_must_be_one_of_the_job(ran: Run) -> None:
    completed = ran("chrome", written(), "-o", "trace.json", "--rank", "4")
    assert completed.code == 2
    assert completed.err == "rankscope: --rank: expected at most 3, the last rank, got 4\n"


def test_a_table_is_of_all_ranks(ran: Run) -> None:
    completed = ran("csv", written(), "-o", "table.csv", "--rank", "0")
    assert (completed.code, completed.err) == (2, "rankscope: --rank: is of chrome and kineto; csv is of all ranks\n")


def test_json_is_alone_on_standard_output(ran: Run) -> None:
    completed = ran("chrome", written(), "-o", "trace.json", "--json")
    assert json.loads(completed.out) == [{"format": "chrome", "written": "trace.json", "notes": []}]


def test_what_the_framework_refuses_is_told_and_not_written(ran: Run) -> None:
    completed = ran("chrome", written("megatron", "tp: 3"), "-o", "trace.json")
    assert completed.code == 2
    assert completed.err.startswith("rankscope: ")
    assert not Path("trace.json").exists()


def test_every_microbatch_is_written_out_unless_that_is_too_much(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(batch=32)
    assert ran("chrome", path, "-o", "whole.json").err == ""
    monkeypatch.setattr("simcore.cli.export.MAX_EXPORTED", 400)
    completed = ran("chrome", path, "-o", "part.json")
    assert (completed.code, completed.out) == (0, "wrote part.json\n")
    assert completed.err.startswith("rankscope: 4 of 8 microbatches are written out, ")
    whole, part = (json.loads(Path(f"{name}.json").read_text(encoding="utf-8")) for name in ("whole", "part"))
    assert part["otherData"]["left_out"] == [completed.err.removeprefix("rankscope: ").strip()]
    assert whole["otherData"]["step_s"] == part["otherData"]["step_s"]
    assert len(whole["traceEvents"]) > len(part["traceEvents"])


def test_an_engine_that_serves_has_nothing_over_time(ran: Run) -> None:
    completed = ran("chrome", str(SCENARIOS / "nano-grpo" / "serve.yaml"), "-o", "trace.json", "--set", "sweep=null")
    assert completed.code == 2
    assert "serve: an engine that serves has no step" in completed.err
    assert not Path("trace.json").exists()


def test_a_sweep_is_not_one_scenario(ran: Run) -> None:
    path = written()
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("sweep: {training.seq_len: [64, 128]}\n")
    completed = ran("chrome", path, "-o", "trace.json")
    assert (completed.code, completed.out) == (2, "")
    assert "exports one scenario, this has 2: --set sweep=null" in completed.err
    assert ran("chrome", path, "-o", "trace.json", "--set", "sweep=null").code == 0


def test_a_place_that_cannot_be_written_is_a_wrong_input(ran: Run) -> None:
    completed = ran("chrome", written(), "-o", "missing/trace.json")
    assert completed.code == 2
    assert "cannot be written" in completed.err


def test_an_unknown_format_is_a_wrong_input(ran: Run) -> None:
    assert ran("vhs", written(), "-o", "trace.json").code == 2


def swept() -> str:
    path = written()
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("sweep: {training.seq_len: [64, 128]}\n")
    return path


def lines(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_is_a_table(ran: Run) -> None:
    completed = ran("csv", swept(), "-o", "out.csv")
    assert (completed.code, completed.out, completed.err) == (0, "wrote out.csv\n", "")
    found = lines("out.csv")
    assert [row["training.seq_len"] for row in found] == ["64", "128"]
    assert [row["verdict"] for row in found] == ["fits", "fits"]


def test_results_become_the_table_that_their_scenarios_are(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = swept()
    monkeypatch.setattr(sys, "argv", ["rankscope", "run", path, "-o", "results", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    for number, source in enumerate((path, "results", "results/results.jsonl")):
        assert ran("csv", source, "-o", f"{number}.csv").code == 0
    tables = [Path(f"{number}.csv").read_bytes() for number in range(3)]
    assert tables[0] == tables[1] == tables[2]


def test_a_table_of_classes_of_ranks(ran: Run) -> None:
    assert ran("csv", written(mesh="dp_shard: 3"), "--table", "ranks", "-o", "out.csv", "--set",
               "training.global_batch_size=3").code == 0
    assert sum(int(line["num_ranks"]) for line in lines("out.csv")) == 3


def test_a_name_like_a_formula_is_told(ran: Run) -> None:
    completed = ran("csv", written(), "-o", "out.csv", "--set", "name=\"=cmd\"")
    assert completed.code == 0
    assert "would take for a formula, in texts: 1" in completed.err
    assert lines("out.csv")[0]["name"] == "'=cmd"


def test_parquet_says_what_it_needs_before_it_simulates(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    completed = ran("parquet", "missing.yaml", "-o", "out.parquet")
    assert completed.code == 2
    assert "pip install 'rankscope[parquet]'" in completed.err
    assert not Path("out.parquet").exists()


def test_parquet_is_written(ran: Run) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: Parquet was not written")
    assert ran("parquet", swept(), "-o", "out.parquet").code == 0
    assert parquet.read_table("out.parquet").column("training.seq_len").to_pylist() == [64, 128]


def test_a_trace_has_no_rows(ran: Run) -> None:
    completed = ran("chrome", written(), "-o", "trace.json", "--table", "ranks")
    assert (completed.code, completed.err) == (2, "rankscope: --table: is of csv and parquet, chrome has no rows\n")


def test_a_refused_layout_of_a_sweep_is_a_row(ran: Run) -> None:
    path = written("megatron", "dp_shard: 2")
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("sweep: {mesh.tp: [1, 3]}\n")
    assert ran("csv", path, "-o", "out.csv").code == 0
    assert [(line["tp"], line["status"], bool(line["problems"])) for line in lines("out.csv")] == [
        ("1", "ok", False), ("3", "illegal", True)]


def test_a_memory_snapshot_is_written(ran: Run) -> None:
    completed = ran("snapshot", written(batch=64), "-o", "mem.pickle")
    assert (completed.code, completed.out) == (0, "wrote mem.pickle\n")
    assert "what lies outside torch's allocator is left out" in completed.err
    assert "microbatches" not in completed.err
    assert Path("mem.pickle").read_bytes()[:2] == bytes([0x80, 4])


def test_a_memory_snapshot_is_of_all_ranks(ran: Run) -> None:
    completed = ran("snapshot", written(), "-o", "mem.pickle", "--rank", "1")
    assert completed.code == 2
    assert "snapshot is of all ranks" in completed.err
    assert not Path("mem.pickle").exists()


def test_of_several_phases_there_is_no_snapshot_yet(ran: Run) -> None:
    path = written()
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("workload: dpo\n")
    completed = ran("snapshot", path, "-o", "mem.pickle")
    assert completed.code == 2
    assert "not yet: a memory snapshot of dpo" in completed.err
