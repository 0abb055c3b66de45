"""Drawn jobs of Megatron-FSDP with adapters and stages, against its own code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import fsdp_truth
from checkout import ROOT

HERE = ROOT / "tests/truth/megatron_fsdp"
VERSIONS = ("core 0.16.1", fsdp_truth.MAIN)
ASSERTED = "AssertionError: counter-productive to free a view of another tensor."


def rows(version: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        (HERE / f"drawn-{version.replace(' ', '-')}.json").read_text("utf-8"))
    return found


def test_none_was_left_out() -> None:
    """The seed draws the same cases again, and upstream ran all of them but those that its own assertion stops."""
    again = subprocess.run([sys.executable, ROOT / "tests/truth/draw_megatron_fsdp.py", "--cases"], check=True,
                           capture_output=True, text=True)
    stored = {version.partition(" ")[0]: {
        kind: [{key: value for key, value in row.items() if key != "found"} for row in some]
        for kind, some in rows(version).items()} for version in VERSIONS}
    assert stored == json.loads(again.stdout)
    found = [row for version in VERSIONS for some in rows(version).values() for row in some]
    assert [row for row in found if ASSERTED in row["found"] and not row.get("frees_outputs")] == []
    assert [row for row in found if "error" in row["found"]] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_all_are_as_upstream(version: str) -> None:
    compared: dict[str, Callable[[dict[str, Any]], str]] = {
        "buckets": fsdp_truth.differs_in_buckets, "steps": fsdp_truth.differs_in_step,
        "stages": partial(fsdp_truth.differs_in_stage, version)}
    broken = [({key: value for key, value in row.items() if key != "found"}, difference)
              for kind, some in rows(version).items() for row in some
              if not row.get("frees_outputs") and (difference := compared[kind](row))]
    assert broken == []
