"""Saving beside what the libraries of Hugging Face do: `truth/probe_save.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.common import checkpoint_files
from simcore.simulate import simulate
from simcore.simulation.hosts import _moment

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/phases/save-transformers-5.23.json").read_text(encoding="utf-8"))
PLACED = "deepseek 2"
"""Its layers are placed, and not simulated."""
CASES: dict[str, Any] = {name: case for name, case in TRUTH["cases"].items() if case["model"] != PLACED}
RANKS = 2


def given(case: dict[str, Any]) -> tuple[str, dict[str, int], dict[str, Any]]:
    """Framework, mesh and the rest of a scenario."""
    preset, fields = TRUTH["models"][case["model"]]
    lora = {"rank": 8, "target_modules": case.get("targets"), "dtype": "bf16"}
    adapted: dict[str, Any] = {"method": "lora", "lora": lora} if "targets" in case else {}
    options = {"use_orig_params": True} if case["way"] == "fsdp1" else {}
    return case["way"], {"dp_replicate" if case["way"] == "ddp" else "dp_shard": RANKS}, {
        "model": {"config": preset, "overrides": fields}, "precision": {"params": "bf16"}, "options": options,
        **adapted}


def on_host(case: dict[str, Any]) -> int:
    framework, mesh, more = given(case)
    report = simulate(small.scenario(framework, mesh, **more), timed=False)
    assert report.host is not None, report.problems
    return next(one for one in report.host.phases if one.phase == "save").host_bytes


def on_device(case: dict[str, Any]) -> int:
    """Bytes beside what rests on the device of rank 0."""
    framework, mesh, more = given(case)
    plan = small.plan_of(framework, mesh, **more)
    assert plan.framework.files.save is not None
    return _moment(plan, plan.framework.files.save)


def known(case: dict[str, Any]) -> int:
    """Bytes of buffers that are in files: of routers that choose by sigmoid, one value in 16 bits for each expert."""
    return 2 * 2 * 8 if case["model"] == "nemotron 3" else 0


@pytest.mark.parametrize("name", CASES)
def test_the_host_holds_what_it_holds_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    found = case["found"]
    if "files" in case:
        monkeypatch.setattr(checkpoint_files, "_FILE_BYTES", case["files"])
    held = on_host(case)
    expected = found["host"] + found["others"] * (RANKS - 1) - known(case)
    if "files" in case:  # ours is as full as it may be, a real one by less than a tensor less
        assert expected <= held == case["files"]
    else:
        assert held == expected


@pytest.mark.parametrize("name", [name for name, case in TRUTH["cases"].items() if case["way"] != "fsdp1"])
def test_the_device_holds_what_it_holds_there(name: str) -> None:
    """Gates and ups of all experts apart under DDP, a module's own parameters under ZeRO-3."""
    assert on_device(TRUTH["cases"][name]) == TRUTH["cases"][name]["found"]["device"]
