"""Kills at random moments: is anything of a batch lost, is any process left?

    python tests/fuzz/kills.py --parent 100 --worker 100 --interrupt 50 --full 20 --scenarios 2000 --seed 1

A batch runs into a folder; at random moments its parent or a worker gets SIGKILL, it gets Ctrl-C or SIGTERM, or its
disk is full. It is started again until it is done. Several disturbances meet each batch (`--per-batch`), spread over
all of it: its start, its results, its end. Of four batches one is appended to another that is finished, and one
takes the place of it. After each, no process may stay that is not meant to, and what readers see
is whole; in the end, results.jsonl and the rows in data/ are byte for byte those of a batch that nothing disturbed.
Exit code 1 on any fault.

A full disk is a tmpfs of its own that shrinks to what is in it; where none can be mounted, or with `--limited`, a limit
of the size of files. Processes are known by a variable in their environment, never by name.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "RANKSCOPE_KILLS"
LONG = 600.0
"""Seconds in which any wait must end: a hang is a fault."""
GONE = 20.0
"""Seconds in which processes must end after their parent: they are told at once, but the machine may be busy."""

SCENARIO = """\
name: many
model: llama-tiny
framework: fsdp2
topology: dgx-h100
mesh: {{dp_shard: 8}}
training: {{seq_len: 8, global_batch_size: 8}}
sweep: {{training.seq_len: {lengths}}}
"""


HOWS = ("", "--append", "", "--overwrite")
"""Options of batches for another batch in their folder, by turns; without a word they begin in no folder."""
AT_END = {"contents.json", "lock", "ahead.jsonl"}
"""Files that `.batch` may hold beside a finished batch; the last only with nothing in it."""


class Disk:
    """A folder for results, whose disk can be full for a while."""

    def __init__(self, folder: Path, *, limited: bool) -> None:
        self.folder = folder
        folder.mkdir()
        self.mounted = not limited and os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", "size=1g", "none", folder)

    def fill(self, pid: int) -> None:
        """From now on nothing more can be written; with a limit, by this process."""
        if self.mounted:
            status = os.statvfs(self.folder)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            _mount("-o", f"remount,size={used + random.randrange(0, 3 * 4096)}", self.folder)
        else:
            size = max((path.stat().st_size for path in self.folder.rglob("*") if path.is_file()), default=0)
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + random.randrange(0, 9000),) * 2)

    def free(self) -> None:
        if self.mounted:
            _mount("-o", "remount,size=1g", self.folder)

    def remove(self) -> None:
        if self.mounted:
            subprocess.run(["umount", self.folder], check=True)  # noqa: S607
        shutil.rmtree(self.folder)


def _mount(*arguments: str | Path) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0  # noqa: S607


@dataclass(frozen=True)
class How:
    """One batch: its option, the folder that exists before, and the results and rows of an undisturbed run."""

    word: str
    other: Path
    whole: bytes
    rows: dict[str, bytes]


class Batch:
    """One batch in its folder, disturbed until `over`."""

    def __init__(self, scenario: Path, disk: Disk, how: How, faults: list[str]) -> None:
        self.scenario, self.disk, self.how, self.faults = scenario, disk, how, faults
        self.whole, self.old = how.whole, b""
        if how.word:
            shutil.copytree(how.other, disk.folder / "out")
            self.old = (how.other / "results.jsonl").read_bytes()
        self.lines = set(self.whole.splitlines(keepends=True))
        self.out, self.mark = disk.folder / "out", secrets.token_hex(8)
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.history: list[str] = []

    def fault(self, told: str) -> None:
        self.faults.append(f"{told} [{' '.join(self.history)}]")
        sys.stdout.write(f"FAULT {self.faults[-1]}\n")

    def start(self) -> subprocess.Popen[bytes]:
        """The run that is under way, or a new one."""
        if self.process is None:
            self.starts += 1
            self.process = _start(self.scenario, self.out, self.mark, self.how.word)
        return self.process

    def processes(self) -> dict[int, str]:
        """Living processes of this batch, with their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                        found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_for(self, share: float) -> bool:
        """Until so much of the results is written; below 0 of the time before the first. False when it ended first."""
        process, since, before = self.start(), time.monotonic(), -1
        if share < 0:
            time.sleep(-share)
        while process.poll() is None and (written := self._written()) < share * len(self.whole):
            if written != before:
                since, before = time.monotonic(), written
            if time.monotonic() - since > LONG:
                self.fault(f"nothing new in {LONG:.0f} s at {written} bytes")
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.005)
        time.sleep(random.choice((0, 0.01, 0.1)) * random.random())
        if process.poll() is None:
            return True
        self.ended({0})
        return False

    def _written(self) -> int:
        """Bytes of results; all of them once they are in place."""
        with suppress(OSError):
            return (self.out / "results.jsonl.part").stat().st_size
        return len(self.whole) if self._is_over() else 0

    def _is_over(self) -> bool:
        """True if all results are in place; others may have been there before."""
        with suppress(OSError):
            return (self.out / "results.jsonl").stat().st_size == len(self.whole)
        return False

    def has_begun(self) -> bool:
        """True if the run has begun its batch: the lock of the folder then has its process number."""
        with suppress(OSError):
            return (self.out / ".batch" / "lock").read_text().strip() == str(self.start().pid)
        return False

    def died_in_time(self, *, had_begun: bool) -> bool:
        """True if a signal may have ended the run by itself: before its batch, or after it, while Python exits."""
        return not had_begun or (self._is_over() and not (self.out / "results.jsonl.part").exists())

    def ended(self, codes: set[int]) -> None:
        """The run has ended or is about to: with one of these codes, soon, alone, and with whole results."""
        process, self.process = self.start(), None
        try:
            _, told = process.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            self.fault("does not end")
            os.killpg(process.pid, signal.SIGKILL)
            _, told = process.communicate()
        # Ctrl-C before any line of ours: Python says so itself, with exit code 1.
        in_python = -signal.SIGINT in codes and b"KeyboardInterrupt" in told and b"simcore" not in told
        if process.returncode not in codes and not (in_python and process.returncode == 1):
            self.fault(f"exit code {process.returncode}, expected {codes}: {told.decode()[-400:]}")
        # Workers may complain that their parent is gone.
        if b"Traceback" in told and process.returncode >= 0 and not in_python:
            self.fault(f"traceback: {told.decode()[-400:]}")
        deadline = time.monotonic() + GONE
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left:
            self.fault(f"processes stay: {left}")
        self.check_lines()

    def check_lines(self) -> None:
        """Checks what a reader sees now: complete lines of the undisturbed batch and nothing else."""
        with suppress(FileNotFoundError):
            content = (self.out / "results.jsonl").read_bytes()
            if self.how.word == "--overwrite" and content == self.old:
                return
            if self.how.word == "--append" and not content.startswith(self.old):
                self.fault(f"results.jsonl lost what was there: {len(content)} bytes, {len(self.old)} before")
            if wrong := [line for line in content.splitlines(keepends=True) if line not in self.lines]:
                self.fault(f"results.jsonl has {len(wrong)} odd lines, such as {wrong[0][:60]!r}..{wrong[0][-20:]!r}")

    def stop(self) -> None:
        """Ends what still runs, where this ends early."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.communicate()

    def finish(self) -> None:
        self.start()
        self.ended({0})
        found = (self.out / "results.jsonl").read_bytes() if (self.out / "results.jsonl").exists() else b""
        if found != self.whole:
            self.fault(f"results differ: {len(found)} bytes of {len(self.whole)}")
        if sorted(path.name for path in self.out.iterdir()) != [".batch", "data", "results.jsonl"]:
            self.fault(f"left over: {sorted(path.name for path in self.out.iterdir())}")
        elif _rows(self.out) != self.how.rows:
            self.fault(f"rows differ: {[name for name, _ in _rows(self.out).items() ^ self.how.rows.items()]}")
        inside = {path.name: path.stat().st_size for path in (self.out / ".batch").iterdir()}
        if inside.keys() - AT_END or inside.get("ahead.jsonl"):
            self.fault(f"left over in .batch: {inside}")
        if self.how.word and not self.old:
            self.fault("there was no other batch")


def _rows(out: Path) -> dict[str, bytes]:
    """Files of a folder's data set by name."""
    return {path.name: path.read_bytes() for path in sorted((out / "data").iterdir())}


def _start(scenario: Path, out: Path, mark: str, how: str = "",
           workers: int = 2) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "simcore", "run", str(scenario), "-o", str(out), "-j", str(workers),
               "--format", "github", *([how] if how else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0,
                            preexec_fn=_listen, env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark})  # noqa: PLW1509


def _listen() -> None:
    """A shell's `&` makes its children deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def parent(batch: Batch) -> bool:
    batch.start().kill()
    batch.ended({-signal.SIGKILL, 0})
    return True


def worker(batch: Batch) -> bool:
    """One of the workers, waited for where there is none yet; the run goes on by itself. False when it has ended."""
    process = batch.start()
    while not (workers := [pid for pid, command in batch.processes().items() if "spawn_main" in command]):
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(random.choice(workers), signal.SIGKILL)
    return True


def interrupt(batch: Batch) -> bool:
    """Ctrl-C as a terminal sends it, to all processes, or as `kill` does, to one; sometimes SIGTERM."""
    number = random.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM))
    process = batch.start()
    had_begun = batch.has_begun()
    (os.killpg if random.random() < 0.5 else os.kill)(process.pid, number)
    with suppress(subprocess.TimeoutExpired):  # `ended` tells of it
        process.wait(LONG)
    # Before the command line has taken over, and after it, Python ends as the signal says; in between it may not.
    batch.ended({128 + number, 0, *([-number] if batch.died_in_time(had_begun=had_begun) else [])})
    return True


def full(batch: Batch) -> bool:
    batch.disk.fill(batch.start().pid)
    batch.ended({2, 0})
    batch.disk.free()
    return True


KINDS: dict[str, Callable[[Batch], bool]] = {"parent": parent, "worker": worker, "interrupt": interrupt, "full": full}


def moments(count: int) -> list[float]:
    """Shares of a batch in order: some in the seconds of the start, some at the very end, the rest anywhere."""
    drawn = (random.random() for _ in range(count))
    return sorted(-2.5 * random.random() if one < 0.15 else 0.999 if one > 0.93 else random.random() for one in drawn)


def disturb(batch: Batch, kinds: list[str], done: Counter[str]) -> list[str]:
    """All of `kinds` in their order; gives those for which the batch ended too soon."""
    for number, (kind, share) in enumerate(zip(kinds, moments(len(kinds)), strict=True)):
        if not batch.wait_for(share):
            return kinds[number:]
        batch.history.append(f"{kind}@{share:.3f}")
        if not KINDS[kind](batch):
            return kinds[number:]
        done[kind] += 1
    return []


def undisturbed(scenario: Path, folder: Path) -> dict[str, How]:
    """Results of each way of running a batch without any disturbance."""
    few, other = folder / "few.yaml", folder / "other"
    few.write_text(SCENARIO.format(lengths=[8 * (i + 1) for i in range(40)]).replace("many", "few"), encoding="utf-8")
    _start(few, other, "", workers=1).communicate()
    hows = {}
    for word in dict.fromkeys(HOWS):
        out = folder / f"undisturbed{word}"
        if word:
            shutil.copytree(other, out)
        _start(scenario, out, "", word, workers=1).communicate()
        hows[word] = How(word, other, (out / "results.jsonl").read_bytes(), _rows(out))
    if hows["--append"].whole != (other / "results.jsonl").read_bytes() + hows[""].whole:
        raise SystemExit("an undisturbed --append is not both batches")
    if hows["--overwrite"].whole != hows[""].whole:
        raise SystemExit("an undisturbed --overwrite is not the batch")
    return hows


def run(asked: argparse.Namespace, folder: Path) -> int:
    random.seed(asked.seed)
    scenario = folder / "many.yaml"
    scenario.write_text(SCENARIO.format(lengths=[8 * (i + 1) for i in range(asked.scenarios)]), encoding="utf-8")
    begun = time.monotonic()
    hows = undisturbed(scenario, folder)
    whole = hows[""].whole
    _say(f"undisturbed: {len(whole.splitlines()):,} results, {len(whole):,} bytes, {time.monotonic() - begun:.0f} s")
    left = [kind for kind in KINDS for _ in range(getattr(asked, kind))]
    random.shuffle(left)
    faults, done, batches, starts = list[str](), Counter[str](), 0, 0
    while left:
        disk = Disk(folder / f"disk{batches}", limited=asked.limited)
        batch = Batch(scenario, disk, hows[HOWS[batches % len(HOWS)]], faults)
        try:
            rest = disturb(batch, left[:asked.per_batch], done)
            batch.finish()
        finally:
            batch.stop()
            disk.remove()
        left = [*rest, *left[asked.per_batch:]]
        batches, starts = batches + 1, starts + batch.starts
        _say(f"batch {batches} {batch.how.word}: {' '.join(batch.history)}; {batch.starts} starts; {len(left)} to go, "
             f"{len(faults)} faults, {time.monotonic() - begun:.0f} s")
    counts = ", ".join(f"{kind} {done[kind]}" for kind in KINDS)
    _say(f"disturbances: {counts}; batches {batches} of {asked.scenarios:,}, starts {starts}, "
         f"{'tmpfs' if disk.mounted else 'limits'}; faults {len(faults)}; {time.monotonic() - begun:.0f} s")
    return 1 if faults else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills at random moments.")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=2)
    parser.add_argument("--scenarios", type=int, default=2000)
    parser.add_argument("--per-batch", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limited", action="store_true", help="a limit of the size of files in the place of a tmpfs")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
