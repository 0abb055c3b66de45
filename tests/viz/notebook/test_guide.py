"""The cells of docs/notebook.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from cards import html
from checkout import ROOT


def cells() -> list[str]:
    page = (ROOT / "docs/notebook.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the scenario files that the cells of the page read."""
    text = "name: {}\nmodel: nemotron-3-tiny\nframework: fsdp2\ntopology: dgx-h100\nmesh: {{dp_shard: 8}}\n" \
           "training: {{seq_len: 64}}\n"
    (tmp_path / "mine.yaml").write_text(text.format("mine"), encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text(f"{text.format('sweep')}sweep: {{mesh.ep: [1, 2, 4]}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("files")
def test_the_page_about_notebooks_runs() -> None:
    variables: dict[str, Any] = {}
    for cell in cells()[:3]:
        assert html(run_cell(cell, variables))


@pytest.mark.usefixtures("files")
def test_pandas_takes_a_table_as_it_is() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: the last cell of docs/notebook.md was not run")
    variables: dict[str, Any] = {}
    *_, shown = (run_cell(cell, variables) for cell in cells())
    assert list(shown["verdict"]) == ["fits"] * 3
    assert str(shown["device_bytes"].dtype) == "int64"


def run_cell(cell: str, variables: dict[str, Any]) -> Any:
    """Runs a cell and returns the value of its last line, which a notebook would show."""
    tree = ast.parse(cell)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "cell", "exec"), variables)  # noqa: S102 - our own page
    return eval(compile(ast.Expression(last.value), "cell", "eval"), variables)  # noqa: S307 - our own page
