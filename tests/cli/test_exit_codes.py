"""Streams that are closed, full or no longer read, disks that are full, paths that cannot be: what the exit code says.

Each is a process of its own, as a shell starts it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, TextIOWrapper
from pathlib import Path

import pytest

from checkout import ROOT
from simcore.cli import app as cli
from simcore.cli import stdio
from simcore.inputs.loading import read

LONG = "x" * 300
FITS = ("name: a\nmodel: llama-tiny\nframework: fsdp2\ntopology: dgx-h100\nmesh: {dp_shard: 8}\n"
        "training: {seq_len: 8}\n")
OOM = FITS + "limits: {usable_memory: 1 MiB}\n"
SOME = FITS + f"sweep: {{training.seq_len: {[8 * (i + 1) for i in range(40)]}}}\n"
MANY = FITS + f"sweep: {{training.seq_len: {[8 * (i + 1) for i in range(100)]}}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("fits", FITS), ("oom", OOM), ("some", SOME), ("many", MANY)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


FULL = "rankscope: standard output cannot be written: No space left on device"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """`rankscope` and what a shell does to its streams; the exit code is that of the command, not of the pipe's end."""
    command = command.replace("rankscope", f"{sys.executable} -m simcore")
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True,  # noqa: S607
                          check=False, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file may pass `size` bytes, of this process and of those that it starts: as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("arguments", "streams", "code"), [
    ("fits.yaml", ">&-", 0), ("fits.yaml", "2>&-", 0), ("oom.yaml", ">&-", 1), ("oom.yaml", "<&- >&- 2>&-", 1),
    ("oom.yaml", "2>/dev/full", 1), ("none.yaml", "2>&-", 2), ("none.yaml", "2>/dev/full", 2), ("--none", "2>&-", 2)])
def test_a_closed_stream_keeps_the_exit_code(arguments: str, streams: str, code: int) -> None:
    done = shell(f"rankscope run {arguments} {streams}")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.usefixtures("folder")
def test_a_full_standard_output_is_told() -> None:
    for arguments in ("run oom.yaml --json", "--help"):
        done = shell(f"rankscope {arguments} > /dev/full")
        assert done.returncode == 2, (arguments, done.stderr)
        assert done.stderr.splitlines()[-1] == FULL, arguments
        assert "bug" not in done.stderr + done.stdout, arguments


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("arguments", ["run fits.yaml", "schema", "init -", "explain fits.yaml peak"])
def test_a_full_standard_output_is_told_by_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    with TextIOWrapper(BufferedWriter(stdio._Kept("/dev/full", "wb"))) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert _code(monkeypatch, *arguments.split()) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1] == FULL
    assert "bug" not in told


@pytest.mark.usefixtures("folder")
def test_both_streams_full() -> None:
    assert shell("rankscope run oom.yaml > /dev/full 2>&1").returncode == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("arguments", "code"), [
    ("run many.yaml", 0), ("run many.yaml --json --set limits.usable_memory=1MiB", 1),
    ("schema --result", 0)])
def test_a_reader_that_leaves_is_told_nothing(arguments: str, code: int) -> None:
    """The exit code is that of the verdict, however much was left to print."""
    done = shell(f"rankscope {arguments} -j 1 2>errors | head -c 5" if "run" in arguments else
                 f"rankscope {arguments} 2>errors | head -c 5")
    assert (done.returncode, len(done.stdout)) == (code, 5)
    assert "Broken" not in Path("errors").read_text()
    assert "Traceback" not in Path("errors").read_text()


@pytest.mark.usefixtures("folder")
def test_results_go_to_their_folder_whatever_becomes_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("rankscope run fits.yaml -o closed >&-").returncode == 0
    assert shell("rankscope run fits.yaml -o full >/dev/full").returncode == 2
    assert _code(monkeypatch, "run", "fits.yaml", "-o", "open") == 0
    closed, full, seen = (Path(name, "results.jsonl").read_bytes() for name in ("closed", "full", "open"))
    assert closed == full == seen
    assert json.loads(closed)["name"] == "a"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_full_disk_in_the_middle_of_a_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    """Computed results are printed, written lines are complete, and the batch continues when there is room."""
    with limited(250_000):
        code = _code(monkeypatch, "run", "some.yaml", "-o", "out", "--json", "-j", jobs)
    out, told = capsys.readouterr()
    assert code == 2, told
    assert told.count("cannot be written: File too large") == 1
    assert len(json.loads(out)) >= 15
    part = (folder / "out" / "results.jsonl.part").read_bytes()
    assert part.endswith(b"\n")
    assert all(json.loads(line)["name"] for line in part.splitlines())
    for name, number in (("out", jobs), ("whole", "1")):
        assert _code(monkeypatch, "run", "some.yaml", "-o", name, "-j", number) == 0
    assert (folder / "out" / "results.jsonl").read_bytes() == (folder / "whole" / "results.jsonl").read_bytes()


def test_older_files_survive_a_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {"page.html": "report fits.yaml -o page.html", "run.html": "run fits.yaml --html run.html",
                "t.json": "export chrome fits.yaml -o t.json", "m.pickle": "export snapshot fits.yaml -o m.pickle",
                "t.csv": "export csv fits.yaml -o t.csv", "t.parquet": "export parquet fits.yaml -o t.parquet",
                "new.yaml": "init new.yaml --force"}  # fmt: skip
    for name, command in commands.items():
        (folder / name).write_text("good\n")
        with limited(512):
            code = _code(monkeypatch, *command.split())
        told = capsys.readouterr().err
        assert code == 2, (command, told)
        assert f"{name}: cannot be written: File too large" in told
        assert (folder / name).read_text() == "good\n"
    assert {path.name for path in folder.iterdir()} == {"fits.yaml", "oom.yaml", "some.yaml", "many.yaml", *commands}


def test_a_page_that_cannot_be_written_costs_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code(monkeypatch, "run", "oom.yaml", "--no-advise", "--html", "no/page.html", "--json", "-o", "out") == 2
    out, told = capsys.readouterr()
    assert json.loads(out)[0]["verdict"] == "oom"
    assert json.loads((folder / "out" / "results.jsonl").read_text())["verdict"] == "oom"
    assert "no/page.html: cannot be written" in told
    assert "does not fit" in told


def test_a_page_costs_no_figures(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code(monkeypatch, "report", "fits.yaml", "-o", "no/page.html", "--figures", "figures", "--json") == 2
    assert json.loads(capsys.readouterr().out)[0]["name"] == "a"
    assert list((folder / "figures").glob("*.svg"))
    (folder / "taken").write_text("")
    assert _code(monkeypatch, "report", "fits.yaml", "-o", "page.html", "--figures", "taken") == 2
    out, told = capsys.readouterr()
    assert out == "wrote page.html: 1 scenario\n"
    assert "taken: cannot be written" in told


@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_ended_batch_keeps_what_it_has(folder: Path, number: signal.Signals, jobs: str) -> None:
    lengths = [8 * (i + 1) for i in range(1000)]
    (folder / "more.yaml").write_text(FITS + f"sweep: {{training.seq_len: {lengths}}}\n")
    part = folder / "out" / "results.jsonl.part"
    command = [sys.executable, "-m", "simcore", "run", "more.yaml", "-j", jobs, "-o", "out", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        deadline = time.monotonic() + 120
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, told = process.communicate(timeout=120)
    assert process.returncode == 128 + number, told
    assert "interrupted" in told
    assert "Traceback" not in told
    assert "results kept; out/results.jsonl has them, and the same run goes on from there" in told
    lines = (folder / "out" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(out)


def test_append_and_overwrite_are_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--append"], ["--overwrite"], ["--append", "--overwrite", "-o", "out"]):
        assert _code(monkeypatch, "run", "fits.yaml", *words) == 2
    assert not (folder / "out").exists()


def test_a_mistake_in_the_input_leaves_results_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _code(monkeypatch, "run", "fits.yaml", "-o", "out") == 0
    before = (folder / "out" / "results.jsonl").read_bytes()
    (folder / "typo.yaml").write_text("nmae: a\n")
    for words in (["typo.yaml"], ["none.yaml"], ["typo.yaml", "--overwrite"], ["fits.yaml", "--set", "mesh.tpp=1"],
                  ["fits.yaml", "--baseline", "none.json", "--overwrite"]):  # fmt: skip
        assert _code(monkeypatch, "run", *words, "-o", "out") == 2
        assert (folder / "out" / "results.jsonl").read_bytes() == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [
    f"run {LONG}", f"check {LONG}", f"place {LONG}", f"report {LONG}", f"validate {LONG}", f"export csv {LONG} -o x",
    f"explain {LONG} peak", f"read {LONG} fits.yaml", f"compare {LONG} fits.yaml", f"compare fits.yaml {LONG}.json",
    f"init {LONG}", f"calibrate --out {LONG}", f"calibrate --out x.yaml --topology {LONG}", f"run fits.yaml -o {LONG}",
    f"run fits.yaml --html {LONG}", f"run fits.yaml --baseline {LONG}", f"report fits.yaml -o {LONG}",
    f"report fits.yaml --figures {LONG}", f"export chrome fits.yaml -o {LONG}", f"run fits.yaml --set model={LONG}",
    f"run fits.yaml --set topology={LONG}", f"run fits.yaml --set topology={LONG}.yaml", f"validate {LONG}.jsonl",
    f"run fits.yaml --set model={LONG}.json", f"run {LONG}*"])
def test_a_path_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert _code(monkeypatch, *command.split()) == 2
    assert "bug in rankscope" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs itself; as root every folder can be read, so the system's answer is given here."""
    (folder / "locked" / "inner").mkdir(parents=True)
    real = os.scandir

    def refused(path: str) -> object:
        if str(path).endswith(("locked", "inner")):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    (found,) = read(["locked"])
    assert found.problems[0].message == "the folder cannot be read: permission denied"
    names = [entry.name for entry in read(["fits.yaml", "."]) if entry.scenario]
    assert names[0] == "a"
    assert [str(problem) for entry in read(["."]) for problem in entry.problems if "folder" in problem.message] == [
        "./locked: the folder cannot be read: permission denied"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_no_command_takes_an_unreadable_folder_for_a_bug(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0)
    for command in ("run locked", "report locked", "validate locked", "export csv locked -o x", "check locked/a.yaml",
                    "run fits.yaml -o locked/out", "init locked/x.yaml", "calibrate --out locked/x.yaml"):  # fmt: skip
        assert _code(monkeypatch, *command.split()) == 2


def _code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["rankscope", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code
