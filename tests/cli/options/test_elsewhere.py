"""`--shard` and `--from`: the parts of a job array give the bytes of one run; wrong parts are refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command import SCENARIO, Ran, Run

ASKED = ("--free", "mesh", "--free", "training.micro_batch_size=1,2,4,64", "--gpus", "1,2", "-j", "1")
SWEEP = SCENARIO + "sweep: {training.micro_batch_size: [1, 2, 4, 8, 64]}\n"


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return str(path)


def refused(told: Ran) -> str:
    assert told.code == 2, told
    assert told.out == ""
    (line,) = told.err.splitlines()
    return line


def parts(ran: Run, tmp_path: Path, command: list[str], count: int = 3) -> list[Ran]:
    return [ran(*command, "--shard", f"{number}/{count}", "-o", str(tmp_path / "parts" / str(number)))
            for number in range(1, count + 1)]


def test_shards_of_a_search_give_the_answer_of_one(ran: Run, file: str, tmp_path: Path) -> None:
    whole = ran("search", file, *ASKED, "-o", str(tmp_path / "whole"))
    done = parts(ran, tmp_path, ["search", file, *ASKED])
    assert [one.code for one in done] == [0, 0, 0]
    assert [one.out for one in done] == ["", "", ""]
    assert not list((tmp_path / "parts").glob("*/answer.json"))
    merged = ran("search", file, *ASKED, "--from", str(tmp_path / "parts" / "*"), "-o", str(tmp_path / "merged"))
    assert merged == whole
    assert (tmp_path / "merged" / "answer.json").read_bytes() == (tmp_path / "whole" / "answer.json").read_bytes()
    counts = json.loads((tmp_path / "whole" / "answer.json").read_text())["counts"]
    assert counts["refused"]
    assert counts["ranked"]


def test_shards_of_a_run_give_the_bytes_of_one(ran: Run, sweep: str, tmp_path: Path) -> None:
    whole = ran("run", sweep, "-o", str(tmp_path / "whole"))
    done = parts(ran, tmp_path, ["run", sweep], 7)  # two have nothing to do
    assert max(int(str(one.code)) for one in done) == whole.code
    merged = ran("run", sweep, "--from", str(tmp_path / "parts" / "*"), "-o", str(tmp_path / "merged"))
    assert merged == whole
    assert (tmp_path / "merged" / "results.jsonl").read_bytes() == (tmp_path / "whole" / "results.jsonl").read_bytes()
    shown = ran("run", sweep, "--from", str(tmp_path / "parts" / "*"), "--no-advise", "--json")
    assert "of another batch (other options" in refused(shown)


def test_a_shard_started_again_is_read(ran: Run, sweep: str, tmp_path: Path) -> None:
    first, again = (ran("run", sweep, "--shard", "1/2", "-o", str(tmp_path / "one")) for _ in range(2))
    assert again.out == first.out
    assert "holds all results of this batch already (3)" in again.err
    other = ran("run", sweep, "--shard", "2/2", "-o", str(tmp_path / "one"))
    assert other.code == 2
    assert "another shard, or none" in other.err.splitlines()[0]


@pytest.mark.parametrize("command", ["run", "search"])
@pytest.mark.parametrize(("arguments", "says"), [
    (["--shard", "3/2", "-o", "x"], "from 1 to 2, got 3"), (["--shard", "0/4", "-o", "x"], "from 1 to 4, got 0"),
    (["--shard", "a/b", "-o", "x"], "such as 2/4"), (["--shard", "1/2"], "expected -o DIR too"),
    (["--shard", "1/2", "-o", "x", "--from", "y"], "expected this or --shard"), (["--from", "none/*"], "no folder has"),
    (["--on", "slurm"], "expected dask, ray"), (["--on", "dask://127.0.0.1:1", "-j", "2"], "expected no -j")])
def test_wrong_options_are_refused(ran: Run, file: str, command: str, arguments: list[str], says: str,
                                   tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(ran(command, file, *arguments))
    assert not (tmp_path / "x").exists()


def test_options_that_a_shard_has_no_answer_for_are_refused(ran: Run, file: str, tmp_path: Path) -> None:
    shard = ["--shard", "1/2", "-o", str(tmp_path / "x")]
    assert "expected no --shard" in refused(ran("search", file, *shard, "--json"))
    assert "expected no --shard" in refused(ran("search", file, *shard, "--write", str(tmp_path / "w")))
    assert "expected no --shard" in refused(ran("run", file, *shard, "--append"))


@pytest.mark.parametrize("command", ["run", "search"])
def test_parts_that_are_not_whole_are_refused(ran: Run, sweep: str, file: str, command: str, tmp_path: Path) -> None:
    asked = [command, *((file, *ASKED) if command == "search" else (sweep,))]
    folder = tmp_path / "parts"
    parts(ran, tmp_path, asked)
    every = [*asked, "--from", str(folder / "*")]
    assert "no journal" in refused(ran(*asked, "--from", str(tmp_path))) or command == "run"
    (folder / "2").rename(tmp_path / "away")
    assert "shard 2/3 is missing" in refused(ran(*every))
    shutil.copytree(folder / "1", folder / "2")
    assert "is shard 1/3, and so is" in refused(ran(*every))
    shutil.rmtree(folder / "2")
    ran(*asked, "--shard", "2/4", "-o", str(folder / "2"))
    assert "is shard 2/4, but" in refused(ran(*every))
    shutil.rmtree(folder / "2")
    ran(*asked, "--set", "training.seq_len=1024", "--shard", "2/3", "-o", str(folder / "2"))
    assert "of another" in refused(ran(*every))
    shutil.rmtree(folder / "2")
    (folder / "2").mkdir()
    assert str(folder / "2") in refused(ran(*every))
    (folder / "2").rmdir()
    (tmp_path / "away").rename(folder / "2")
    assert ran(*every).code in (0, 2)


def test_a_shard_of_a_search_that_is_not_finished_is_named(ran: Run, file: str, tmp_path: Path) -> None:
    parts(ran, tmp_path, ["search", file, *ASKED])
    journal = tmp_path / "parts" / "2" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))
    told = refused(ran("search", file, *ASKED, "--from", str(tmp_path / "parts" / "*")))
    assert "shard 2/3 is not finished" in told


def test_a_shard_of_a_run_that_is_not_finished_is_named(ran: Run, sweep: str, tmp_path: Path) -> None:
    parts(ran, tmp_path, ["run", sweep])
    results = tmp_path / "parts" / "2" / "results.jsonl"
    results.write_bytes(results.read_bytes().splitlines(keepends=True)[0])
    told = refused(ran("run", sweep, "--from", str(tmp_path / "parts" / "*")))
    assert "parts/2" in told
