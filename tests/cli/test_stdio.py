"""A stream that cannot hold our signs gets ASCII in their place, and every number."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import small
from checkout import ROOT
from simcore.cli.sheets.levels import LEVELS
from simcore.cli.stdio import replace_signs


def written(text: str, encoding: str) -> bytes:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    replace_signs(stream, None, io.StringIO())
    stream.write(text)
    stream.flush()
    return raw.getvalue()


@pytest.mark.parametrize(("encoding", "told"), [
    ("ascii", b"_.:-=+*# #+.| |- `- x ?"), ("latin-1", b"_.:-=+*# #+.| |- `- \xd7 ?"),
    ("utf-8", f"{LEVELS} █▓░│ ├─ └─ × 漢".encode())])
def test_what_a_stream_cannot_hold_is_replaced(encoding: str, told: bytes) -> None:
    assert written(f"{LEVELS} █▓░│ ├─ └─ × 漢", encoding) == told


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "explain"])
def test_the_command_speaks_ascii_where_it_must(command: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps(small.scenario("fsdp2", {"dp_shard": 4}).normalised()), encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-m", "simcore", command, str(file)], capture_output=True, env=environment,
                          check=False)
    text = done.stdout.decode("ascii")
    assert "#" in text
    assert "F forward" in text
    assert "?" not in text
    assert "Traceback" not in done.stderr.decode("ascii")
