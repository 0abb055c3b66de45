"""Recipes that `convert` writes are those that the frameworks' own parsers have read (`make accept`)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import pytest

from checkout import ROOT
from converted_files import ACCEPTED, converted, digests, files_of

STORED: Final = sorted(path.stem for path in ACCEPTED.glob("*.json"))


@cache
def written() -> dict[str, dict[str, dict[str, str]]]:
    """Digests of files by format and scenario."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name, scenario, made in converted():
        found.setdefault(name, {})[scenario.name] = digests(files_of(made, scenario))
    return found


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ACCEPTED / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return found


def test_every_format_was_read() -> None:
    assert {*written()} == {*STORED}


@pytest.mark.parametrize("name", STORED)
def test_what_is_written_is_what_was_read(name: str) -> None:
    """Another text is to be read again: `make accept`."""
    assert {row["scenario"]: row["files"] for row in rows(name)} == written()[name]


@pytest.mark.parametrize("name", STORED)
def test_the_framework_takes_all_of_it(name: str) -> None:
    assert {row["scenario"]: row["error"] for row in rows(name) if "error" in row} == {}


def test_the_page_tells_how_many_were_read() -> None:
    count = sum(len(rows(name)) for name in STORED)
    words = {7: "seven", 8: "eight", 9: "nine"}
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert f"{count} recipes of {words[len(STORED)]} formats" in page
