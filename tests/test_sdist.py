"""The source distribution has every file that git has, so that `make test` runs from it as from a checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from bench.wheel import sizes, tree_of
from checkout import ROOT


def git(*arguments: str) -> str | None:
    """Standard output of git in this folder; None without git, or where this folder is none of a checkout's."""
    try:
        ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout


@pytest.fixture
def tracked() -> set[str]:
    """Files that git has; skips where there is no checkout, as in a source distribution that was unpacked."""
    if git("rev-parse", "--show-prefix") != "\n":
        pytest.skip("not the top of a checkout: nothing to compare with")
    names = (git("ls-files", "-z") or "").split("\0")
    return {name for name in names if (ROOT / name).is_file()}


@pytest.fixture
def packed(tmp_path: Path) -> set[str]:
    """Files of a source distribution that is built from this folder, without the folder that all of them are in."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT, check=True,
                   capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def test_a_wheel_has_the_configurations_of_all_models_in_one_file(tmp_path: Path) -> None:
    """A tenth of the size of as many files; what tests alone compare with is left out."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True,
                   capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        packed = json.loads(archive.read("simcore/models/presets.json"))
        names = archive.namelist()
    files = (ROOT / "simcore/models/presets").glob("*.json")
    assert packed == {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    assert [name for name in names if "/presets/" in name] == ["simcore/models/presets/names.toml"]
    assert [name for name in names if "/answers/" in name or name.endswith(("fitted.json", "judged.json"))] == []
    size, count = sizes(tree_of(""))  # what docs/scale.md counts: without the wheel's own metadata
    assert count.total() == len([name for name in names if ".dist-info/" not in name])
    assert size.total() == pytest.approx(built.stat().st_size, rel=0.02)


def test_the_page_has_the_size_of_the_wheel() -> None:
    """Sizes are those of a moment, made again by `python tests/bench/wheel.py` when it has grown by a twentieth."""
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    told = page.partition("<!-- begin: wheel -->")[2].partition("<!-- end: wheel -->")[0]
    lines = [[cell.strip() for cell in line.split("|")] for line in told.splitlines()
             if "`" in line or "the wheel" in line]
    rows = {cells[1]: int(cells[3].replace(",", "")) for cells in lines}
    size, _ = sizes(tree_of(""))
    assert rows.pop("the wheel") == pytest.approx(size.total() / 1024, rel=0.05)
    assert {name.strip("`") for name in rows} <= set(size)


@pytest.mark.slow
def test_a_source_distribution_has_what_git_has(tracked: set[str], packed: set[str]) -> None:
    assert sorted(tracked - packed) == []
    assert not {name for name in packed if name.startswith((".venv", "dist/", "build/"))}
