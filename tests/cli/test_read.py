"""`rankscope read`: its output, and files that must not end in a traceback."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import recorded
from command import Run
from oom_messages import CASES
from samples_of_recipes import SAMPLES
from training_logs import LOGS

SCENARIO = """
name: small
model: nemotron-3-tiny
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 4}
training: {seq_len: 64, global_batch_size: 8}
"""
LOG = ("[Rank 0] (after 2 iterations) memory (MB) | allocated: 10.00 | max allocated: 20.00 | reserved: 30.00 |"
       " max reserved: 40.00\n")


@pytest.fixture
def ran(ran: Run) -> Run:
    Path("small.yaml").write_text(SCENARIO, encoding="utf-8")
    return ran


def dumped(value: Any = None) -> str:
    Path("mem.pickle").write_bytes(pickle.dumps(recorded.step() if value is None else value))
    return "mem.pickle"


def test_a_snapshot(ran: Run) -> None:
    completed = ran("read", dumped(), "small.yaml")
    assert completed.code == 0
    first, heads, peak, *_ = completed.out.splitlines()
    assert first == "memory snapshot mem.pickle beside small, ranks 0-3"
    assert heads.split() == ["measured", "simulated", "difference"]
    assert peak.startswith("peak allocated")
    assert "35.00 MiB" in peak
    assert "at the highest moment" in completed.out
    assert "optimizer states" in completed.out
    assert completed.err == ""


def test_a_trace(ran: Run) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "nvjet_hsh", "ts": 0, "dur": 2500}
    Path("t.json").write_text(json.dumps({"traceEvents": [kernel]}), encoding="utf-8")
    completed = ran("read", "t.json", "small.yaml")
    assert (completed.code, completed.err) == (0, "")
    assert completed.out.startswith("trace t.json beside small, ranks 0-3\n")
    assert "kernels: matrix products" in completed.out
    assert "2.5 ms" in completed.out


def test_a_log(ran: Run) -> None:
    Path("run.log").write_text(LOG, encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml")
    assert completed.code == 0
    assert completed.out.startswith("log of Megatron-LM run.log beside small, ranks 0-3\n")
    assert "20.00 MiB" in completed.out


@pytest.mark.parametrize("name", LOGS)
def test_every_format_of_logs_is_read_back(ran: Run, name: str) -> None:
    Path("run.log").write_text(LOGS[name], encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml")
    assert (completed.code, completed.err) == (0, "")
    assert completed.out.startswith(f"log of {name} run.log beside small, ranks 0-3\n")
    (found,) = json.loads(ran("read", "run.log", "small.yaml", "--json").out)
    assert found["quantities"]


def test_a_log_that_ends_out_of_memory_is_two_comparisons(ran: Run) -> None:
    Path("run.log").write_text(f"{LOGS['Automodel']}\n{CASES[6].text}\n", encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml")
    assert (completed.code, completed.err) == (0, "")
    first, second = completed.out.split("\n\nout-of-memory error ")
    assert first.startswith("log of Automodel run.log beside small")
    assert "out of memory: rank 0, GPU 0, in backward, transformers/trainer.py training_step" in second
    assert "388.00 MiB" in second
    found = json.loads(ran("read", "run.log", "small.yaml", "--json").out)
    assert [one["failure"] is None for one in found] == [True, False]
    assert found[1]["failure"]["asked_bytes"] == 388 * 2**20


def test_a_scenario_that_does_not_fit_gets_advice(ran: Run) -> None:
    Path("run.log").write_text(CASES[6].text, encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml", "--set", "training.seq_len=65536", "--set",
                    "training.micro_batch_size=64", "--set", "training.global_batch_size=256")
    assert completed.code == 0
    assert "simulated: does not fit either" in completed.out
    assert "what would make it fit" in completed.out
    assert "--set training." in completed.out


def test_other_texts_about_memory_are_named(ran: Run) -> None:
    line = "[0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'\n"
    Path("run.log").write_text(f"x\n{line}", encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml")
    assert completed.code == 0
    assert "NCCL found no memory for its buffers" in completed.out
    assert "nccl 392.00 MiB" in completed.out


def test_a_recipe_is_taken_as_it_is(ran: Run, tmp_path: Path) -> None:
    Path("run.log").write_text(LOGS["Automodel"], encoding="utf-8")
    recipe = SAMPLES["automodel"].write(tmp_path)
    completed = ran("read", "run.log", recipe, "--gpus", 4, "--seq-len", 512, "--topology", "dgx-h100", "--json")
    (found,) = json.loads(completed.out)
    assert (completed.code, found["ranks"]) == (0, ["0-3"])
    assert "the recipe leaves open: machine" in ran("read", "run.log", recipe).err


def test_utf_16_is_read(ran: Run) -> None:
    Path("run.log").write_text(LOG, encoding="utf-16")
    assert ran("read", "run.log", "small.yaml").out.startswith("log of Megatron-LM")


def test_json_is_alone_on_standard_output(ran: Run) -> None:
    (found,) = json.loads(ran("read", dumped(), "small.yaml", "--json", "--set", "training.seq_len=128").out)
    assert found["quantities"][0]["measured"] == 35 * 2**20 - 100
    assert found["source"] == "memory snapshot"


def test_what_export_wrote_differs_in_nothing(ran: Run) -> None:
    assert ran("export", "snapshot", "small.yaml", "-o", "ours.pickle").code == 0
    (found,) = json.loads(ran("read", "ours.pickle", "small.yaml", "--json").out)
    assert {row["difference"] for row in found["groups"]} == {0}


class Payload:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"{sys.executable} -c \"open('made', 'w')\"",)


def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(ran: Run) -> None:
    completed = ran("read", dumped({"segments": [Payload()], "device_traces": []}), "small.yaml")
    assert (completed.code, completed.out) == (2, "")
    assert "nothing of the file was run" in completed.err
    assert not Path("made").exists()


@pytest.mark.parametrize(("content", "told"), [
    (b"", "got none of them"), (b"hello\n", "got none of them"), (b"\x80\x04", "truncated"),
    (pickle.dumps([1]), "no memory snapshot"),
    (pickle.dumps(recorded.step())[:-200], "truncated"), (bytes(range(256)), "got none of them"),
    (b"PK\x03\x04", "got none of them"), (b'{"segments": []}', "got none of them"),
    (pickle.dumps(1, protocol=0), "got none of them")])
def test_what_cannot_be_read_is_one_line(ran: Run, content: bytes, told: str) -> None:
    Path("file").write_bytes(content)
    completed = ran("read", "file", "small.yaml")
    assert (completed.code, completed.out) == (2, "")
    assert completed.err.startswith("rankscope: file: ")
    assert completed.err.count("\n") == 1
    assert told in completed.err


def test_files_that_are_none_and_files_that_are_too_large(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in ran("read", "missing", "small.yaml").err
    assert "got a directory" in ran("read", ".", "small.yaml").err
    monkeypatch.setattr("simcore.validation.memory_snapshot.MAX_BYTES", 1000)
    completed = ran("read", dumped(), "small.yaml")
    assert completed.code == 2
    assert "expected at most 1,000 bytes" in completed.err


def test_a_text_that_is_too_large(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.batch.measured.MAX_TEXT", 1000)
    Path("run.log").write_text(LOG * 9, encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml")
    assert (completed.code, completed.out) == (2, "")
    assert completed.err == (f"rankscope: run.log: expected a log of at most 1,000 bytes, got {len(LOG) * 9:,}: keep "
                             "the lines of some steps\n")


@pytest.mark.parametrize("content", [
    b"\x00" * 2**22, b"x" * 2**22, bytes(range(256)) * 2**14, b"{'loss': " * 2**18, b"\n" * 2**22, b"\xff\xfe" * 2**20,
    b"[rank0]: " * 2**18, b'File "' * 2**18, b"CUDA out of memory. Tried to allocate " * 2**16])
def test_hostile_contents_are_refused_quickly(ran: Run, content: bytes) -> None:
    Path("run.log").write_bytes(content)
    began = time.process_time()
    completed = ran("read", "run.log", "small.yaml")
    assert (completed.code, completed.out, completed.err.count("\n")) == (2, "", 1)
    assert time.process_time() - began < 5


def test_scenarios_that_are_wrong(ran: Run) -> None:
    assert ran("read", dumped(), "missing.yaml").code == 2
    completed = ran("read", dumped(), "small.yaml", "--set", "mesh.tp=3")
    assert (completed.code, completed.out) == (2, "")
    assert ran("read", dumped(), "small.yaml", "--rank", "9").err == "rankscope: small: has no rank 9: it has 4\n"
    with Path("small.yaml").open("a", encoding="utf-8") as file:
        file.write("sweep: {training.seq_len: [64, 128]}\n")
    assert "reads beside one scenario, this has 2" in ran("read", dumped(), "small.yaml").err


def test_names_do_not_steer_the_terminal(ran: Run) -> None:
    Path("a\x1b[31m.log").write_text(LOG, encoding="utf-8")
    assert "\x1b" not in ran("read", "a\x1b[31m.log", "small.yaml").out
