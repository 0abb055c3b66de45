"""`docs/ci.md`: its workflows parse, and their commands do in a repository of scenarios what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from checkout import ROOT
from simcore.inputs.document import parse_document

PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
WORKFLOWS = [parse_document(text, "ci.md").data for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)]
SCENARIO = """
name: small
model: nemotron-3-tiny
framework: fsdp2
topology: dgx-h100
mesh: {{dp_shard: 4}}
training: {{seq_len: {}, global_batch_size: 8}}
"""
ENVIRONMENT = {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "TARGET": "origin/main", "GIT_CONFIG_GLOBAL": os.devnull,
               "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
               "GIT_COMMITTER_EMAIL": "a@b"}


def github(workflow: dict[str, Any]) -> list[str]:
    """Commands of a job, without those that install."""
    (job,) = workflow["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step and not step["run"].startswith("pip ")]


def gitlab(workflow: dict[str, Any]) -> list[str]:
    (job,) = workflow.values()
    return [line for line in job["script"] if not line.startswith("pip ")]


SCRIPTS = {"github": github(WORKFLOWS[0]), "gitlab": gitlab(WORKFLOWS[1]), "stored": gitlab(WORKFLOWS[2])}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone of a repository whose main branch has one scenario."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    (origin / "recipes").mkdir(parents=True)
    (origin / "recipes/small.yaml").write_text(SCENARIO.format(64), encoding="utf-8")
    for command in ("git init -q -b main", "git add .", "git commit -q -m first"):
        assert bash(command, origin).returncode == 0
    assert bash("git clone -q origin clone", tmp_path).returncode == 0
    return clone


def bash(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as build servers run it: a shell that ends at the first failure."""
    environment = {**os.environ, **ENVIRONMENT, "RUNNER_TEMP": str(folder.parent),
                   "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=environment, capture_output=True, text=True,  # noqa: S607
                          check=False, timeout=300)


def ran(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The first command of a workflow that fails, or its last."""
    for command in SCRIPTS[name]:
        done = bash(command, folder)
        if done.returncode:
            break
    return done


def test_the_page_has_three_workflows_with_commands() -> None:
    assert [len(commands) for commands in SCRIPTS.values()] == [4, 6, 1]
    assert WORKFLOWS[0]["on"] == {"pull_request": {"paths": ["recipes/**"]}}
    assert "github.base_ref" not in "".join(SCRIPTS["github"])  # the name of a branch is no part of a command


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_branch_that_grows_does_not_pass(name: str, repository: Path) -> None:
    (repository / "recipes/small.yaml").write_text(SCENARIO.format(4096), encoding="utf-8")
    done = ran(name, repository)
    assert done.returncode == 1, done.stderr
    if name == "github":
        assert done.stdout.startswith("::error file=recipes/small.yaml,line=2,title=small::peak ")
        told = done.stdout
    else:
        told = (repository / "memory.xml").read_text(encoding="utf-8")
        assert [suite.get("failures") for suite in ElementTree.fromstring(told).iter("testsuite")] != ["0"]  # noqa: S314
    assert "since the baseline" in told


def test_a_stored_baseline_of_the_same_scenarios_passes(repository: Path) -> None:
    assert bash("rankscope run recipes --json > baseline.json", repository).returncode == 0
    assert ran("stored", repository).returncode == 0
