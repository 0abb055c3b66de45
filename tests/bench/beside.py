"""Work and processor time of this checkout beside another one's, in turns, so that a busy machine is as busy for both.

    git worktree add --detach /tmp/before d501dec9
    python tests/bench/beside.py /tmp/before

Printed is a table: function calls of one answer, which no other program changes, and the least processor time of all
turns. Processes of both checkouts wait beside each other and answer each question in turn, first one, then the other.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "`import simcore`": ("-c", "import simcore"),
    "`rankscope --help`": ("-m", "simcore", "--help"),
    "`rankscope run` of first-look": ("-m", "simcore", "run", "scenarios/first-look/first-look.yaml"),
}
"""Commands from outside, each a process, from compiled files as an installed package has them."""
SPACES: Final = (("dense", "timed"), ("nano-automodel", "timed"))
"""Layouts of `bench.distinct` that a process meets for the first time, and again."""


def questions() -> dict[str, Callable[[], object]]:
    """Calls of the engine that tests/bench asks, by name."""
    from bench.test_speed import nano, staged
    from simcore.simulate import simulate

    found: dict[str, Callable[[], object]] = {}
    for framework in ("fsdp2", "automodel", "megatron"):
        few = nano(framework, {"dp_shard": 8, "ep": 8})
        found[f"8 ranks, {framework}, memory"] = partial(simulate, few, timed=False)
        found[f"8 ranks, {framework}, with timeline"] = partial(simulate, few)
    for framework in ("automodel", "megatron"):
        found[f"8 stages, {framework}, with timeline"] = partial(simulate, staged(framework, 8))
    many = nano("megatron", {"dp_replicate": 2048, "dp_shard": 64, "ep": 64})
    found["131,072 ranks, megatron, with timeline"] = partial(simulate, many)
    return found


def answering() -> None:
    """Answers questions of one checkout: a line in (name, or a space), a line of JSON out (numbers)."""
    from bench.distinct import milliseconds

    asked = questions()
    for work in asked.values():
        work()
        work()
    gc.set_threshold(100_000, 20, 50)  # as the command sets it
    sys.stdout.write(json.dumps([*asked]) + "\n")
    for line in iter(sys.stdin.readline, ""):
        sys.stdout.flush()
        kind, name = line.strip().split(" ", 1)
        if kind == "calls":
            profile = cProfile.Profile()
            profile.runcall(asked[name])
            told: Any = sum(one.callcount for one in profile.getstats())
        elif kind == "space":
            space, answer = name.split()
            told = milliseconds(space, answer, 2)[1]
        else:
            told = 1e3 * min(_seconds(asked[name]) for _ in range(5))
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


class Checkout:
    """A checkout with a process that answers about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment = kept | {"PYTHONPATH": f"{folder}:{folder}/tests"}
        self.process = self._start()
        self.names: list[str] = self.ask("calls 8 ranks, fsdp2, memory", first=True)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, __file__, "--answer"], cwd=self.folder, env=self.environment,
                                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, question: str, *, first: bool = False) -> Any:
        """Answer to a question; `first`: the names of all."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        if first:
            self.process.stdout.readline()
        return told

    def again(self) -> None:
        """Starts a fresh process."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()
        self.ask("calls 8 ranks, fsdp2, memory", first=True)

    def run(self, command: Sequence[str]) -> float:
        """Milliseconds of the processor of a command and its children."""
        process = subprocess.Popen([sys.executable, *command], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        assert process.returncode in (0, 1), (command, self.folder)  # 1: some do not fit
        return 1e3 * (used.ru_utime + used.ru_stime)


def table(before: Checkout, now: Checkout, turns: int) -> str:
    """Markdown table of what both say."""
    lines = ["| | calls before | now | more | ms before | now | more |", "| --- | --- | --- | --- | --- | --- | --- |"]

    def row(name: str, calls: Sequence[int], spent: Sequence[Sequence[float]]) -> None:
        old, new = (min(column) for column in zip(*spent, strict=True))
        counted = f"{calls[0]:,} | {calls[1]:,} | {calls[1] / calls[0] - 1:+.0%}" if calls else " | | "
        lines.append(f"| {name} | {counted} | {old:.2f} | {new:.2f} | {new / old - 1:+.0%} |")
        sys.stderr.write(f"{lines[-1]}\n")

    for name in now.names:
        row(name, [one.ask(f"calls {name}") for one in (before, now)],
            [[one.ask(f"time {name}") for one in (before, now)] for _ in range(turns)])
    for space, answer in SPACES:
        met: list[list[Sequence[float]]] = []
        for _ in range(max(1, turns // 10)):
            met.append([one.ask(f"space {space} {answer}") for one in (before, now)])
            before.again()
            now.again()
        row(f"a layout of {space}, met first", (), [[each[0] for each in pair] for pair in met])
        row(f"a layout of {space}, met again", (), [[each[1] for each in pair] for pair in met])
    for name, command in COMMANDS.items():
        row(name, (), [[one.run(command) for one in (before, now)] for _ in range(max(2, turns // 4))][1:])
    return "\n".join(lines) + "\n"


def main() -> int:
    """Prints the table, or answers for one checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--answer", action="store_true")
    asked = parser.parse_args()
    if asked.answer:
        answering()
    else:
        sys.stdout.write(table(Checkout(asked.before.resolve()), Checkout(ROOT), asked.turns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
