"""Locks: every version that the Makefile installs, with hashes; made by `make lock`, held against pyproject.toml."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checkout import ROOT

NEWEST, LOWEST, TOOLS = "requirements.lock", ".ci/lowest.lock", ".ci/tools.lock"
CLUSTERS, SITE = ".ci/clusters.lock", ".ci/site.lock"
PYTHONS = ("3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = PROJECT["dependency-groups"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
ASKED = {
    NEWEST: [*PROJECT["project"]["dependencies"], *EXTRAS["test"], *EXTRAS["parquet"], *EXTRAS["figures"],
             *EXTRAS["studio"], *GROUPS["build"]],
    LOWEST: [*PROJECT["project"]["dependencies"], *EXTRAS["parquet"], *EXTRAS["figures"], *EXTRAS["studio"],
             *GROUPS["build"]],
    TOOLS: GROUPS["tools"],
    SITE: GROUPS["site"],
    CLUSTERS: [*PROJECT["project"]["dependencies"], *EXTRAS["test"], *EXTRAS["parquet"], *EXTRAS["figures"],
               *EXTRAS["dask"], *EXTRAS["ray"], *GROUPS["build"]],
}


def text(lock: str) -> str:
    return (ROOT / lock).read_text(encoding="utf-8")


def entries(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Pinned requirements, and the hashes of their files."""
    lines = re.sub(r"^ *#.*\n", "", text(lock), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    split = [line.split(" --hash=sha256:") for line in lines if line.strip()]
    return [(Requirement(first.strip()), [digest.strip() for digest in digests]) for first, *digests in split]


def pinned(lock: str, python: str) -> dict[str, str]:
    """Versions by name that one Python gets, on Linux."""
    there = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux",
             "platform_python_implementation": "CPython", "implementation_name": "cpython"}
    held = [one for one, _ in entries(lock) if one.marker is None or one.marker.evaluate(there)]
    assert len({one.name for one in held}) == len(held)
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in held}


def asked(lock: str, python: str) -> list[Requirement]:
    """Requirements of pyproject.toml for a lock and one Python."""
    found = [Requirement(line) for line in ASKED[lock]]
    return [one for one in found if one.name != "rankscope"
            and (one.marker is None or one.marker.evaluate({"python_version": python}))]


@pytest.mark.parametrize("lock", ASKED)
def test_every_file_has_a_hash(lock: str) -> None:
    assert entries(lock)
    for one, digests in entries(lock):
        assert re.fullmatch(r"==[^,*]+", str(one.specifier)), one
        assert digests, one
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests), one


@pytest.mark.parametrize("lock", ASKED)
def test_no_address_is_in_a_lock(lock: str) -> None:
    """The index that serves a file and the place of a checkout differ between people: the hash identifies the file."""
    assert not re.search(r"://|^-|^ *--(?!hash=)|@ |(?<![\w.])/", text(lock), re.MULTILINE)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", ASKED)
def test_a_lock_has_what_pyproject_asks_for(lock: str, python: str) -> None:
    held = pinned(lock, python)
    assert [str(one) for one in asked(lock, python)
            if not one.specifier.contains(held.get(canonicalize_name(one.name), "0"))] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lowest_versions_are_those_of_pyproject(python: str) -> None:
    """`numpy>=1.26` is tested with 1.26.0."""
    held = pinned(LOWEST, python)
    for one in asked(LOWEST, python):
        (bound,) = one.specifier
        assert bound.operator == ">="
        assert re.fullmatch(re.escape(bound.version) + r"(\.0)*", held[canonicalize_name(one.name)]), one
