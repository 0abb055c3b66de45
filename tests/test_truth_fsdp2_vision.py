"""Whole steps of models with a frozen vision tower under `fully_shard`: `tests/truth/probe_fsdp2_vision.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import small
from checkout import ROOT
from every import expect_of_every
from sees_images import scenario_of
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.record_layers import Workload
from simcore.simulate import simulate

CASES: dict[str, Any] = {name: row for file in ("vision", "drawn-vision") for name, row in json.loads(
    (ROOT / f"tests/truth/fsdp2/{file}-torch-2.13.0.json").read_text(encoding="utf-8")).items()}
REST = ("sharded_param", "opt_state", "buffer", "workspace")
SLACK = 0.0006
"""Part of a peak of which numbers of patches and of heads are, which one of both leaves out."""


def asked(name: str, folder: Path) -> Scenario:
    case = CASES[name]["case"]
    options = {"recompute_by": "transformers"} if case["recompute"] else {}
    return scenario_of(name, case, folder, "fsdp2", options, case.get("world", 8))


def expect_traffic(name: str, folder: Path) -> None:
    """Call for call; backward gathers the last layer of the tower ahead of its turn, which never comes."""
    job, table = prepare(asked(name, folder))
    case = CASES[name]["case"]
    workload = Workload(case["batch"], case["seq"], 0, images=case["batch"] * case["images"])
    program = lower(place(job.graph, job.mesh, table, 0), workload, actions(table.schedule, 0, 1), hooks_of(table))
    small.expect_halves(program, CASES[name])


def expect_peaks(name: str, folder: Path) -> None:
    report, truth = simulate(asked(name, folder)), CASES[name]["peaks"]
    assert report.status == "ok", report.problems
    peak = report.ranks[0].peak
    assert peak is not None
    rest = sum(peak.by_category.get(key, 0) for key in REST) + _inputs(CASES[name]["case"])
    for half, phases in (("forward", ("forward", "loss")), ("backward", ("backward", "recompute"))):
        found = max(size for phase, size in peak.by_phase.items() if phase in phases) - rest
        tables = _tables(CASES[name]["case"]) if half == "forward" else 0
        assert -tables <= found - truth[half] + SLACK * truth[half], (half, found, truth)
        assert found - truth[half] <= SLACK * truth[half], (half, found, truth)


def _patches(case: dict[str, Any]) -> int:
    sides = case["sides"][0] * case["sides"][1]
    return int(case["batch"] * case["images"] * sides // case["fields"]["vision_config"]["patch_size"]**2)


def _inputs(case: dict[str, Any]) -> int:
    """Bytes of patches in fp32, tokens and labels: there through both passes, and gone where the optimizer steps."""
    vision = case["fields"]["vision_config"]
    pixels = 3 * vision["temporal_patch_size"] * vision["patch_size"]**2
    return int(4 * _patches(case) * pixels + 2 * 8 * case["batch"] * case["seq"])


def _tables(case: dict[str, Any]) -> int:
    """Bytes of a layer's rotary tables in 16 bits: its hook casts them before it gathers, here they come behind."""
    vision = case["fields"]["vision_config"]
    return int(2 * 2 * _patches(case) * vision["hidden_size"] // vision["num_heads"])


def test_traffic_is_what_was_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_traffic(name, tmp_path))


def test_peaks_are_what_was_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_peaks(name, tmp_path))
