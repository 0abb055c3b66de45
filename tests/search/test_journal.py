"""The journal of a search: a kill costs a chunk, the answer is the same bytes, other searches are refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkout import ROOT
from search.test_search import BASE, BOTH, SMALL
from simcore.errors import InputError
from simcore.search import search as searching
from simcore.search.journal import ANSWER, JOURNAL
from simcore.search.search import Search, search
from simcore.search.space import Space, space_of

SCENARIO = {"name": "base", "model": "llama-3.2-1b", "topology": "dgx-h100", "framework": "fsdp2",
            "training": {"seq_len": 1024, "global_batch_size": 32}}


def space(*gpus: int) -> Space:
    return space_of(BASE, gpus=gpus or (2,), free=SMALL)


def test_a_finished_search_is_read_and_not_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = search(Search(space(), BOTH), kept=tmp_path)
    assert json.loads((tmp_path / ANSWER).read_text()) == json.loads(first.model_dump_json())
    monkeypatch.setattr(searching, "judged", lambda *_: pytest.fail("simulated again"))
    monkeypatch.setattr(searching, "timed", lambda *_: pytest.fail("timed again"))
    assert search(Search(space(), BOTH), kept=tmp_path) == first


def test_a_journal_cut_anywhere_gives_the_same_answer(tmp_path: Path) -> None:
    whole = search(Search(space(), BOTH), kept=tmp_path)
    lines = (tmp_path / JOURNAL).read_bytes()
    answer = (tmp_path / ANSWER).read_bytes()
    generator = random.Random(3)
    for size in [0, 1, *(generator.randrange(len(lines)) for _ in range(6))]:
        (tmp_path / JOURNAL).write_bytes(lines[:size])
        (tmp_path / ANSWER).unlink()
        assert search(Search(space(), BOTH), kept=tmp_path) == whole
        assert (tmp_path / ANSWER).read_bytes() == answer


def test_lines_that_are_damaged_are_simulated_again(tmp_path: Path) -> None:
    whole = search(Search(space(), BOTH), kept=tmp_path)
    first, *others = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(first + others[0] + b'{"stage": "memory"}\n' + b"".join(others[1:]))
    assert search(Search(space(), BOTH), kept=tmp_path) == whole


def test_another_search_is_refused_in_one_line(tmp_path: Path) -> None:
    search(Search(space(), BOTH), kept=tmp_path)
    with pytest.raises(InputError, match="of another search: another space") as refused:
        search(Search(space(4), BOTH), kept=tmp_path)
    assert "\n" not in str(refused.value)
    (tmp_path / JOURNAL).write_bytes(b"nonsense\n")
    with pytest.raises(InputError, match="of another search"):
        search(Search(space(), BOTH), kept=tmp_path)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(InputError, match="expected an empty folder"):
        search(Search(space(), BOTH), kept=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_search_that_is_ended_twice_goes_on(tmp_path: Path) -> None:
    """By a kill, then by SIGTERM; the undisturbed one runs in one process."""
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps(SCENARIO))
    asked = [sys.executable, "-m", "simcore", "search", str(file), "--gpus", "4", "--json", "-j"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = subprocess.run([*asked, "1", "-o", str(whole)], env=environment, capture_output=True, check=True)
    for number, code, share in ((signal.SIGKILL, -9, 0.4), (signal.SIGTERM, 143, 0.8)):
        process = subprocess.Popen([*asked, "2", "-o", str(parts)], env=environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        deadline, wanted = time.monotonic() + 60, share * _size(whole)
        while process.poll() is None and _size(parts) < wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30) in (code, 0), number
    again = subprocess.run([*asked, "2", "-o", str(parts)], env=environment, capture_output=True, check=True)
    assert again.stdout == undisturbed.stdout
    assert (parts / ANSWER).read_bytes() == (whole / ANSWER).read_bytes()


def _size(folder: Path) -> int:
    try:
        return (folder / JOURNAL).stat().st_size
    except OSError:
        return 0
