"""Ctrl-C while processes start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT

PROGRAM = """\
import multiprocessing, signal
from simcore.executors.interrupts import withheld

def send_blocked(pipe):
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

if __name__ == "__main__":
    for _ in range(2):
        ours, its = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=send_blocked, args=(its,))
        with withheld():
            process.start()
        print(ours.recv(), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        process.join()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signal masks")
def test_the_first_process_too_starts_with_ctrl_c_blocked(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.stdout.split() == ["True", "False"] * 2, "blocked in the child, and not in this process afterwards"
