"""Lines of a terminal while a search goes on: the first says what is searched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT
from command import SCENARIO
from search.test_search import BASE, BOTH
from simcore.cli.sheets.stages import asked_line
from simcore.search.condition import condition
from simcore.search.search import Search
from simcore.search.space import space_of

pty = pytest.importorskip("pty", reason="no pseudo-terminals here")


def test_the_line_says_what_is_searched() -> None:
    space = space_of(BASE, gpus=(4, 8), frameworks=("fsdp2", "megatron"), conditions=[condition("peak_gib < 20")],
                     free={"mesh.tp": (), "mesh.ep": (1, 2), "training.micro_batch_size": (1, 2), "options": ()})
    assert asked_line(Search(space, BOTH)) == (
        f"searching {BASE.name}: fsdp2, megatron on 4, 8 GPUs of {BASE.topology}; free: tp, ep=1,2, "
        f"micro_batch_size=1,2, memory options; where peak_gib < 20; by {BOTH[0].words}")


def test_many_values_are_told_in_short() -> None:
    told = asked_line(Search(space_of(BASE, gpus=range(1, 25), free={"training.seq_len": (64,)}), BOTH))
    assert "on 1, 2, 3, ..., 24 (24) GPUs of" in told
    assert "free: seq_len=64;" in told


def test_a_terminal_shows_it_first_and_while_the_search_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    words = [sys.executable, "-m", "simcore", "search", str(tmp_path / "mine.yaml"), "--gpus", "1,2", "-j", "1"]
    terminal, theirs = pty.openpty()
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT) as child:
        os.close(theirs)
        try:
            first = os.read(terminal, 4096).decode()
            ended = child.poll()
        finally:
            child.kill()
    os.close(terminal)
    assert first.startswith("searching mine: ")
    assert ended is None
