"""Messages of DeepSpeed's ZeRO over models whose vision tower is frozen: `tests/truth/probe_zero_vision.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import small
from checkout import ROOT
from every import expect_of_every
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload

CASES: dict[str, Any] = {name: row for file in ("vision", "drawn-vision") for name, row in json.loads(
    (ROOT / f"tests/truth/deepspeed/{file}-0.19.6.json").read_text(encoding="utf-8")).items()}
STAGES: dict[str, dict[str, Any]] = {
    "zero2": {"reduce_bucket_size": 300_000, "overlap_comm": False},
    "zero3": {"reduce_bucket_size": 300_000, "overlap_comm": False, "stage3_prefetch_bucket_size": 100_000,
              "stage3_param_persistence_threshold": 1_000, "stage3_max_reuse_distance": 1_000_000}}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def program(name: str, folder: Path) -> Program:
    case, path = CASES[name]["case"], folder / f"{name}.json"
    path.write_text(json.dumps(case["fields"]), encoding="utf-8")
    training: dict[str, Any] = {
        "seq_len": case["seq"], "micro_batch_size": case["batch"], "images": case["images"], "frozen": case["frozen"],
        "recompute": "full" if case["recompute"] else "none"}
    training |= dict(zip(("image_height", "image_width"), case["sides"], strict=True)) if "sides" in case else {}
    options = {"attn_implementation": case.get("attention", "sdpa" if "sides" in case else "eager")}
    asked = Scenario.model_validate({
        "name": "sees", "model": {"config": str(path)}, "framework": case["zero"], "topology": "dgx-h100",
        "mesh": {"dp_shard": case.get("world", 4)}, "framework_options": STAGES[case["zero"]] | options,
        "training": training})
    job, table = prepare(asked)
    workload = Workload(case["batch"], case["seq"], 0, images=case["batch"] * case["images"])
    return lower(place(job.graph, job.mesh, table, 0), workload, actions(table.schedule, 0, 1), hooks_of(table))


def expect_messages(name: str, folder: Path) -> None:
    """Call for call: what forward gathers, what backward gathers and reduces; in bytes what the step gathers."""
    made, row = program(name, folder), CASES[name]
    for half, phases in (("forward", ("forward", "loss")), ("backward", ("backward", "recompute"))):
        for theirs, ours in OURS.items():
            found = [size for _, phase, size in small.calls(made, ours) if phase in phases]
            assert found == [size for called, size in row[half] if called == theirs and size > 8], (half, ours)
    step = sum(size for _, phase, size in small.calls(made, "all_gather") if phase == "optimizer")
    assert step == sum(size for called, size in row["step"] if called.startswith("all_gather"))


def test_a_frozen_tower_is_gathered_in_forward_alone(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: expect_messages(name, tmp_path))
