"""Whole steps of models with a vision tower under torch's FSDP1: `tests/truth/probe_fsdp1_vision.py`."""

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

CASES: dict[str, Any] = json.loads((ROOT / "tests/truth/fsdp1/vision-torch-2.13.0.json").read_text(encoding="utf-8"))
REST = ("sharded_param", "opt_state", "buffer", "workspace", "input")
NUMBERS = 200
"""Bytes of numbers of windows and of tokens, which checkpoints keep."""


def asked(name: str, folder: Path) -> Scenario:
    case = CASES[name]["case"]
    return scenario_of(name, case, folder, "fsdp1", {"use_orig_params": bool(case["frozen"])})


def measured(name: str, half: str) -> list[tuple[str, int]]:
    """Collectives with the bytes of the whole; torch's list names a gather's part."""
    return [("all_gather", 8 * size) if kind == "allgather_" else (kind, size) for kind, size in CASES[name][half]]


def expect_traffic(name: str, folder: Path) -> None:
    job, table = prepare(asked(name, folder))
    case = CASES[name]["case"]
    workload = Workload(case["batch"], case["seq"], 0, images=case["batch"] * case["images"])
    program = lower(place(job.graph, job.mesh, table, 0), workload, actions(table.schedule, 0, 1), hooks_of(table))
    for half, phases in (("forward", ("forward", "loss")), ("backward", ("backward", "recompute"))):
        for collective in ("all_gather", "reduce_scatter"):
            found = [size for _, phase, size in small.calls(program, collective) if phase in phases]
            assert found == [size for kind, size in measured(name, half) if kind == collective], (half, collective)


def expect_peaks(name: str, folder: Path) -> None:
    """With use_orig_params the part's gradients of the step before are dropped in forward, and are there before it."""
    report, truth = simulate(asked(name, folder)), CASES[name]["peaks"]
    assert report.status == "ok", report.problems
    rank = report.ranks[0]
    assert rank.peak is not None
    rest = sum(rank.peak.by_category.get(key, 0) for key in REST)
    left = sum(part.grads_bytes for part in rank.at_rest.values()) if CASES[name]["case"]["frozen"] else 0
    for half, phases in (("forward", ("forward",)), ("backward", ("loss", "backward", "recompute"))):
        found = max(size for phase, size in rank.peak.by_phase.items() if phase in phases) - rest
        assert -NUMBERS <= found - truth[half] - left <= 0, (half, found, truth, left)


def test_traffic_is_what_was_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_traffic(name, tmp_path))


def test_peaks_are_what_was_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_peaks(name, tmp_path))
