"""Searches that are stopped at random moments: is the answer the same, is any process left?

    PYTHONPATH=tests python -m search.kills --driver 20 --worker 20 --interrupt 20 --full 20 --seed 1

A search keeps its journal in a folder. At random moments its driver or a worker gets SIGKILL, all get Ctrl-C, or the
disk is full (a tmpfs that shrinks, else a limit of the size of files). It is started again until it is done: its answer
and its rows must be byte for byte those of an undisturbed search, and after each disturbance no process may stay.
Processes are known by a variable in their environment. Exit code 1 on any fault.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from fuzz.kills import GONE, LONG, MARK, ROOT, Disk
from simcore.search.journal import ANSWER, JOURNAL
from simcore.tables.data_set import DATA

SCENARIO = """\
name: base
model: llama-3.2-1b
framework: fsdp2
topology: dgx-h100
training: {seq_len: 1024, global_batch_size: 64}
"""
KINDS = ("driver", "worker", "interrupt", "full")
GPUS = "2,4,8"


class Searching:
    """One search in its folder."""

    def __init__(self, scenario: Path, folder: Path, *, limited: bool = True) -> None:
        self.disk = Disk(folder, limited=limited)
        self.scenario, self.out, self.mark = scenario, folder / "out", secrets.token_hex(8)
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "simcore", "search", str(self.scenario), "--gpus", GPUS, "-j", "2", "-o",
                   str(self.out)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: self.mark}
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0,
                                env=environment)

    def processes(self) -> dict[int, str]:
        """Living processes of this search, with their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def kept(self) -> int:
        """Bytes of the journal."""
        with suppress(OSError):
            return (self.out / JOURNAL).stat().st_size
        return 0

    def files(self) -> dict[str, bytes]:
        """Contents of the answer and of the rows by name."""
        paths = [path for path in (self.out / ANSWER, *(self.out / DATA).glob("*")) if path.is_file()]
        return {path.name: path.read_bytes() for path in paths}

    def wait_for(self, num_bytes: int) -> bool:
        """Waits for so much of the journal; False if the search has ended before."""
        deadline = time.monotonic() + LONG
        while self.process.poll() is None and self.kept() < num_bytes and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.3 * random.random())
        return self.process.poll() is None

    def disturb(self, kind: str) -> set[int]:
        """Sends the signal; returns the exit codes that may follow."""
        if kind == "driver":
            self.process.kill()
            return {-signal.SIGKILL, 0}
        if kind == "interrupt":
            os.killpg(self.process.pid, signal.SIGINT)
            return {128 + signal.SIGINT, 0, -signal.SIGINT}  # the last while Python starts or exits
        if kind == "full":
            self.disk.fill(self.process.pid)
            return {2, 0}
        workers = [pid for pid, command in self.processes().items() if "spawn_main" in command]
        with suppress(ProcessLookupError):
            os.kill(random.choice(workers or [self.process.pid]), signal.SIGKILL)
        return {0} if workers else {-signal.SIGKILL, 0}

    def left(self) -> dict[int, str]:
        """Processes that stay after the end of the search."""
        deadline = time.monotonic() + GONE
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found


def run(asked: argparse.Namespace, folder: Path) -> int:
    random.seed(asked.seed)
    scenario = folder / "base.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    whole = Searching(scenario, folder / "whole")
    limited = asked.limited
    _, told = whole.process.communicate()
    assert whole.process.returncode == 0, told.decode()
    files, size = whole.files(), whole.kept()
    assert len(files) > 2, f"no rows: {sorted(files)}"
    todo = [kind for kind in KINDS for _ in range(getattr(asked, kind))]
    random.shuffle(todo)
    faults, done, searches = list[str](), Counter[str](), 0
    while todo:
        searches += 1
        one = Searching(scenario, folder / str(searches), limited=limited)
        found, taken = _one(one, todo, size, files)
        one.disk.remove()
        faults += found
        done.update(taken)
        sys.stdout.write(f"search {searches}: {' '.join(taken)}; {len(todo)} to go, {len(faults)} faults\n")
    sys.stdout.write(f"disturbances: {dict(done)}; searches {searches}; journal {size:,} bytes; faults {len(faults)}\n")
    return 1 if faults else 0


def _one(one: Searching, todo: list[str], size: int, files: dict[str, bytes]) -> tuple[list[str], list[str]]:
    """Disturbs one search up to four times, then lets it end; (faults, disturbances), taken off `todo`."""
    faults, taken = list[str](), list[str]()
    for share in sorted(random.random() for _ in range(min(4, len(todo)))):
        if not one.wait_for(int(share * size)):
            break
        taken.append(todo.pop())
        codes = one.disturb(taken[-1])
        if codes == {0}:
            continue  # it goes on without the worker
        _, told = one.process.communicate(timeout=LONG)
        if one.process.returncode not in codes or (b"Traceback" in told and taken[-1] != "interrupt"):
            faults.append(f"{taken[-1]}: exit code {one.process.returncode}: {told.decode()[-300:]}")
        if left := one.left():
            faults.append(f"{taken[-1]}: processes stay: {left}")
        one.disk.free()
        one.process = one.start()
    _, told = one.process.communicate(timeout=LONG)
    if one.process.returncode != 0:
        faults.append(f"end: exit code {one.process.returncode}: {told.decode()[-300:]}")
    found = one.files()
    faults += [f"{name} differs" for name in sorted(files.keys() | found.keys()) if files.get(name) != found.get(name)]
    for fault in faults:
        sys.stdout.write(f"FAULT {fault}\n")
    return faults, taken


def main() -> int:
    parser = argparse.ArgumentParser(description="Searches that are stopped at random moments.")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limited", action="store_true", help="a limit of the size of files in the place of a tmpfs")
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
