"""Lines of TOML's tables and keys."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import read_files
from simcore.recipes.toml_lines import toml_lines

TEXT = '''\
# [not.a.table]
title = "a # sign, and [brackets]"  # more
[model]
name = 'llama3'
filters = [
    "output",  # [no.table]
    "a = b",
]
text = """
[still.text]
name = "other"
"""
after = 1

[ quantize . "linear.8" ]
dotted.key = { inner = [1, 2], other = "}" }

[[runs]]
steps = 1
[[runs]]
steps = 2
[runs.late]
"quoted key" = true
'''


def test_tables_and_keys_have_the_lines_on_which_they_begin() -> None:
    tomllib.loads(TEXT)
    assert toml_lines(TEXT) == {
        ("title",): 2, ("model",): 3, ("model", "name"): 4, ("model", "filters"): 5, ("model", "text"): 9,
        ("model", "after"): 13, ("quantize",): 15, ("quantize", "linear.8"): 15, ("quantize", "linear.8", "dotted"): 16,
        ("quantize", "linear.8", "dotted", "key"): 16, ("runs",): 18, ("runs", 0): 18, ("runs", 0, "steps"): 19,
        ("runs", 1): 20, ("runs", 1, "steps"): 21, ("runs", 1, "late"): 22, ("runs", 1, "late", "quoted key"): 23}


@pytest.mark.parametrize("text", ["", "a = 1", "\n\n[a]\r\nb = 2\r\n", "a = '''\n[b]'''\nc = \"\"\"x\"\"\"\"\nd = 1\n"])
def test_every_key_of_a_text_has_a_line(text: str) -> None:
    lines = toml_lines(text)
    assert all((key,) in lines for key in tomllib.loads(text))


def test_messages_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TEXT, encoding="utf-8")
    places = {one.key: one.where for one in Reader(read_files([str(path)])[0].document).all()}
    assert places["model.after"] == f"{path}:13"
    assert places["runs.1.steps"] == f"{path}:21"
