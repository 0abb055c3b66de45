"""`rankscope read`: its output, and files that must not end in a traceback."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import recorded
from command import Run

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


def test_a_log(ran: Run) -> None:
    Path("run.log").write_text(LOG, encoding="utf-8")
    completed = ran("read", "run.log", "small.yaml")
    assert completed.code == 0
    assert completed.out.startswith("log of Megatron-LM run.log beside small, ranks 0-3\n")
    assert "20.00 MiB" in completed.out


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
    (b"", "got neither"), (b"hello\n", "got neither"), (b"\x80\x04", "truncated"),
    (pickle.dumps([1]), "no memory snapshot"),
    (pickle.dumps(recorded.step())[:-200], "truncated"), (bytes(range(256)), "got neither"),
    (b"PK\x03\x04", "got neither"), (b'{"segments": []}', "got neither"), (pickle.dumps(1, protocol=0), "got neither")])
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
