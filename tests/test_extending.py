"""The guides of `docs/extending` run: each adds a toy to a copy of the engine as it says, and simulates it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT
from command import Run

GUIDES = ROOT / "docs" / "extending"
EDITED = {"model-family": 2, "framework": 2, "gpu": 0, "implementation": 1, "optimizer": 1,
          "schedule": 1}
"""Guide -> files of the engine that it may edit; new files are not counted."""
NO_GUIDES = ("README", "cost")
"""An overview, and a page that a command makes."""
MAX_LINES = 60
FENCE = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fences(guide: str) -> list[tuple[str, str, str]]:
    """(language, file, text) of every block of a guide that names a file."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    return [(match[1], match[2], match[3]) for match in FENCE.finditer(text)]


def edited(text: str, change: str) -> str:
    """The text after the change's runs of lines: " " stays, "-" goes, "+" comes; each run stands there once."""
    for run in re.findall(r"(?:^[ -].*\n)+(?:^\+.*\n)+", change, re.MULTILINE):
        lines = run.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"expected once: {before}"
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the engine, its bytecode with it."""
    root = tmp_path_factory.mktemp("engine")
    for name in ("simcore", "topologies", "tests/truth/measured"):
        shutil.copytree(ROOT / name, root / name)
    return root


def extended(guide: str, engine: Path, root: Path) -> list[str]:
    """Files of the engine that the guide edits, once they are edited in a copy under `root`, of links to the rest."""
    shutil.copytree(engine, root, copy_function=os.link, dirs_exist_ok=True)
    changed = []
    for language, file, text in fences(guide):
        path = root / file
        if language == "diff":
            before = path.read_text(encoding="utf-8")
            path.unlink()
            path.write_text(edited(before, text), encoding="utf-8")
            changed.append(file)
            continue
        assert not path.exists(), f"{file} is there already"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return changed


@pytest.mark.parametrize("guide", EDITED)
def test_a_guide_adds_a_toy_that_is_simulated(guide: str, engine: Path, tmp_path: Path) -> None:
    changed = extended(guide, engine, tmp_path)
    assert len(set(changed)) <= EDITED[guide]
    ended = subprocess.run([sys.executable, "-m", "simcore", "run", "toy.yaml", "--json"], cwd=tmp_path, check=False,
                           env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr
    (report,) = json.loads(ended.stdout)
    assert (report["status"], report["verdict"]) == ("ok", "fits")
    assert report["time"]["step_s"] > 0
    assert all(rank["peak"]["allocated_bytes"] > 0 for rank in report["ranks"])


@pytest.mark.parametrize("guide", EDITED)
def test_a_guide_without_its_edits_adds_nothing(ran: Run, guide: str, tmp_path: Path) -> None:
    """Asserts that the guide's additions answer: the engine without them refuses the scenario."""
    for language, file, text in fences(guide):
        if language in ("yaml", "json") and (file == "toy.yaml" or guide != "gpu"):
            (tmp_path / file).write_text(text, encoding="utf-8")
    told = ran("check", "toy.yaml")
    assert told.code == 2, told


def test_the_list_of_an_axis_is_true() -> None:
    """Files of the engine in whose code `etp` is a name; adding an axis means these, or as many like them."""
    named = set(re.findall(r"`(simcore/[\w/]+\.py)`", (GUIDES / "mesh-axis.md").read_text(encoding="utf-8")))
    word = re.compile(r"\betp\b")
    assert named == {path.relative_to(ROOT).as_posix() for path in (ROOT / "simcore").rglob("*.py")
                     if word.search(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("guide", sorted(path.stem for path in GUIDES.glob("*.md") if path.stem not in NO_GUIDES))
def test_a_guide_is_short(guide: str) -> None:
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= 110
    assert guide in EDITED or not FENCE.search(text)
