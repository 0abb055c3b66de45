"""Commands of rankscope in processes of their own, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from checkout import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "RAY_USAGE_STATS_ENABLED": "0"}
SCENARIO = {"name": "base", "model": "nemotron-3-nano-30b-a3b", "topology": "dgx-h100", "framework": "automodel",
            "training": {"seq_len": 4096, "global_batch_size": 64, "method": "lora"}}
ASKED = ("--gpus", "2", "--framework", "automodel,megatron")
WITHIN = 900.0
"""Seconds for one command, on a machine where others work too."""


def command(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """A command that was started in `folder`."""
    return subprocess.Popen([sys.executable, "-m", "simcore", *arguments], env=ENVIRONMENT, cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_listen)  # noqa: PLW1509


def _listen() -> None:
    """A shell's `&` makes its children deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    try:
        out, err = process.communicate(timeout=WITHIN)
    finally:
        process.kill()
    return process.returncode, out, err


def scenario(folder: Path) -> str:
    (folder / "a.yaml").write_text(json.dumps(SCENARIO))
    return "a.yaml"


def waited_for(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + WITHIN
    while not holds():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def below(pid: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    found, todo = list[int](), [pid]
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def expect_interruptible(place: str, folder: Path) -> None:
    """Ctrl-C ends a search on a local cluster at `place`, and the processes of the cluster."""
    process = command("search", scenario(folder), *ASKED, "--on", place, "-j", "2", "-o", "kept", folder=folder)
    waited_for(lambda: lines(folder / "kept" / "journal.jsonl") > 50, process)
    children = below(process.pid)
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert (code, err) == (130, "")
    waited_for(lambda: not any(map(alive, children)))
