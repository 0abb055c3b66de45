"""Each package's docstring is its page: what comes in, what goes out, where to start; modules that it names exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from checkout import ROOT

ENGINE = ROOT / "simcore"
PACKAGES = sorted(path.parent for path in ENGINE.rglob("__init__.py") if "_data" not in path.parts)

UPSTREAM = {"AllGatherPipeline", "DistributedDataParallel", "FastLanguageModel", "FullyShardedDataParallel",
            "GradReducePipeline"}


def name_of(package: Path) -> str:
    return package.relative_to(ROOT).as_posix()


def page_of(package: Path) -> str:
    page = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert page
    return page


@pytest.mark.parametrize("package", PACKAGES[1:], ids=name_of)
def test_a_page_is_short_and_says_what_comes_in_and_goes_out(package: Path) -> None:
    page = page_of(package)
    assert 6 <= len(page.splitlines()) <= 16
    assert [word for word in ("Input:", "Output:", "Start:") if word not in page] == []


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_where_to_start_is_a_module_of_the_package(package: Path) -> None:
    start = page_of(package).partition("Start:")[2].partition("\n\n")[0]
    modules = {word.partition(".")[0] for word in re.findall(r"`([a-z_]\w*(?:\.\w+)?)`", start)}
    there = {path.stem for path in package.glob("*.py")}
    assert modules & there or "/implementation.py" in start
    dotted = {word.partition(".")[0] for word in re.findall(r"`([a-z_]\w*\.\w+)`", start)}
    assert dotted <= there


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_paths_that_a_page_names_exist(package: Path) -> None:
    tops = {path.name for path in PACKAGES if path.parent == ENGINE}
    for path in re.findall(r"`([a-z_]\w*/[\w./]*\w)`", page_of(package)):
        if path.partition("/")[0] in tops:
            assert (ENGINE / path).exists(), path
        elif path.startswith(("topologies/", "docs/", "tests/", "simcore/")):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_types_that_a_page_names_exist(package: Path) -> None:
    named = set(re.findall(r"`(?:\w+\.)?([A-Z][a-z0-9]+[A-Za-z0-9]*)`", page_of(package)))
    assert sorted(named - defined()) == []


@cache
def defined() -> set[str]:
    """Classes and names of types of the engine, and upstream's that pages explain."""
    found = set(UPSTREAM)
    for path in ENGINE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        found |= {one[1] or one[2] for one in re.finditer(r"(?m)^class (\w+)|^([A-Z]\w+)(?:: \w+)? = ", source)}
    return found


def test_the_engines_page_names_every_package() -> None:
    words = set(re.findall(r"\w+", page_of(ENGINE)))
    assert [path.name for path in PACKAGES if path.parent == ENGINE and path.name not in words] == []

