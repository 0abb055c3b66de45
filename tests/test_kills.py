"""A few kills of a small batch; the many are `python tests/fuzz/kills.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT

KILLS = ROOT / "tests/fuzz" / "kills.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_nothing_is_lost_and_no_process_stays() -> None:
    command = [sys.executable, str(KILLS), "--parent", "1", "--worker", "1", "--interrupt", "1", "--full", "1",
               "--scenarios", "40", "--per-batch", "2", "--seed", "5", "--limited"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "parent 1, worker 1, interrupt 1, full 1" in done.stdout
