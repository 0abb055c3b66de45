"""`docs/tutorial`: what its quick commands print is what the pages show; `make site-test` asks all of them.

    python tests/test_tutorial.py --write      # asks all again and writes the pages
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkout import ROOT
from command import Ran, Run
from tutorial import COLUMNS, PAGES, answered, commands, recipe, told

QUICK = ("1-recipe", "3-why")


def test_it_has_six_steps_each_with_commands() -> None:
    assert [page.name[0] for page in PAGES] == list("123456")
    assert all(commands(page) for page in PAGES)


def test_each_step_leads_to_the_next() -> None:
    for page, following in itertools.pairwise(PAGES):
        assert f"({following.name})" in page.read_text(encoding="utf-8").splitlines()[-1], page


def test_quick_commands_print_what_the_pages_show(ran: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", COLUMNS)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "recipe.yaml").write_text(recipe(), encoding="utf-8")
    asked = [one for page in PAGES if page.stem in QUICK for one in commands(page)]
    assert [one._replace(answer=told(one.command, ran, tmp_path)) for one in asked] == asked


def asked_again() -> Iterator[tuple[Path, str]]:
    """Each page, and its text with today's answers: all commands in a new folder, each in a process of its own."""
    environment = {**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8",
                   "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as name:
        def call(*arguments: object) -> Ran:
            done = subprocess.run([sys.executable, "-m", "simcore", *map(str, arguments)], cwd=name, env=environment,
                                  capture_output=True, encoding="utf-8", check=False)
            return Ran(done.returncode, done.stdout, done.stderr)

        (Path(name) / "recipe.yaml").write_text(recipe(), encoding="utf-8")
        for page in PAGES:
            yield page, answered(page, lambda command: told(command, call, Path(name)))


if __name__ == "__main__" and "--write" in sys.argv:
    for written, text in asked_again():
        written.write_text(text, encoding="utf-8")
