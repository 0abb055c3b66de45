"""Answers on the page of SQL questions are those of `rankscope query`.

    python tests/test_query_page.py --write
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from pathlib import Path

import pytest

from checkout import ROOT
from simcore.cli.query import lines_of
from simcore.cli.session import run_entries
from simcore.inputs.loading import read
from simcore.simulate import simulate

PAGE = ROOT / "docs/query.md"
BLOCK = re.compile(r"```sql\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def answered(page: str, folder: Path) -> str:
    """The page with each question's answer below it, of the batch that it shows."""
    from simcore.tables.query import ask

    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (folder / "q.yaml").write_text(text, encoding="utf-8")
    with contextlib.chdir(folder):
        run_entries(read(["q.yaml"]), simulate, 1, folder / "out")

    def with_answer(found: re.Match[str]) -> str:
        sql = found[1]
        lines = "".join(f"{line}\n" for line in lines_of(ask(folder / "out", sql)))
        return f"```sql\n{sql}```\n\n```text\n{lines}```\n"

    return BLOCK.sub(with_answer, page)


@pytest.mark.slow
def test_the_answers_are_those_of_the_command(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed: nothing was asked")
    page = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(page)) == 10
    assert page == answered(page, tmp_path), "run: python tests/test_query_page.py --write"


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"]
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(answered(PAGE.read_text(encoding="utf-8"), Path(name)), encoding="utf-8")
