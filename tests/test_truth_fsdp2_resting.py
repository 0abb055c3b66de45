"""Text alone beside a vision tower under `fully_shard`, as accelerate and axolotl wrap it.

Drawn by `tests/truth/draw_fsdp2_resting.py`.
"""

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
from simcore.program.record_layers import Workload
from simcore.simulate import simulate

CASES: dict[str, Any] = json.loads((ROOT / "tests/truth/fsdp2/drawn-resting-torch-2.13.0.json").read_text(
    encoding="utf-8"))
NOT_YET = [name for name, row in CASES.items() if row["case"]["by"] == "accelerate" and row["case"]["adapters"]
           and row["case"]["fields"]["tie_word_embeddings"] and not row["case"]["recompute"]]
"""Adapters and a tied head in accelerate's tail: four of eleven peaks in backward were 0.9 to 5.7 % too high."""
RUN = [name for name in CASES if name not in NOT_YET]
NAMED = ["q_proj", "o_proj", "down_proj", "linear_fc1"]
IN_DECODER = r".*language_model.*(q_proj|o_proj|down_proj)"
REST = ("sharded_param", "opt_state", "buffer", "workspace")
SLACK = 0.0006
"""Part of a peak of which sizes are that one of both leaves out."""


def asked(name: str, folder: Path) -> Scenario:
    case = CASES[name]["case"]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(case["fields"]), encoding="utf-8")
    options = {"attn_implementation": "sdpa", "reshard_after_forward": True, **(
        {"recompute_by": "transformers"} if case["recompute"] else {}), **(
        {"wrap_tower": "root"} if case["named"] else {}), **(
        {"wrap": "embedding_tail"} if case["by"] == "accelerate" else {})}
    training: dict[str, Any] = {
        "seq_len": case["seq"], "micro_batch_size": case["batch"], "images": 0,
        "recompute": "full" if case["recompute"] else "none",
        "precision": {"params": "bf16" if case["adapters"] else "fp32", "grad_reduce": "fp32"}}
    if case["adapters"]:
        training |= {"method": "lora", "lora": {
            "rank": 8, "dtype": "fp32", "target_modules": NAMED if case["adapters"] == "all" else IN_DECODER}}
    return Scenario.model_validate({
        "name": "rests", "model": {"config": str(path)}, "framework": "fsdp2", "topology": "dgx-h100",
        "mesh": {"dp_shard": case["world"]}, "framework_options": options, "training": training})


def units_of(name: str, folder: Path) -> list[list[Any]]:
    """[module, elements] of each unit, "" for the root, sorted; a unit of several modules is named by the first."""
    job, table = prepare(asked(name, folder))
    graph = job.graph
    return sorted(["" if unit.is_root else unit.name.partition(",")[0], sum(
        graph.tensors[graph.layers[layer].kind][number].numel for layer, numbers in unit.members for number in numbers)]
        for unit in table.units if unit.members)


def expect_traffic(name: str, folder: Path) -> None:
    """Call for call."""
    job, table = prepare(asked(name, folder))
    case = CASES[name]["case"]
    program = lower(place(job.graph, job.mesh, table, 0), Workload(case["batch"], case["seq"], 0),
                    actions(table.schedule, 0, 1), hooks_of(table))
    small.expect_halves(program, CASES[name])


def expect_peaks(name: str, folder: Path) -> None:
    report, truth = simulate(asked(name, folder)), CASES[name]["peaks"]
    assert report.status == "ok", report.problems
    peak, case = report.ranks[0].peak, CASES[name]["case"]
    assert peak is not None
    rest = sum(peak.by_category.get(key, 0) for key in REST) + 2 * 8 * case["batch"] * case["seq"]
    for half, phases in (("forward", ("forward", "loss")), ("backward", ("backward", "recompute"))):
        found = max(size for phase, size in peak.by_phase.items() if phase in phases) - rest
        assert abs(found - truth[half]) <= SLACK * truth[half], (half, found, truth)


def test_what_was_told_wrongly_is_refused(tmp_path: Path) -> None:
    assert (len(CASES), len(RUN)) == (40, 29)
    for name in NOT_YET:
        assert "embedding_tail with a tied head and adapters" in str(simulate(asked(name, tmp_path)).problems[0])


def test_units_are_those_that_the_libraries_make(tmp_path: Path) -> None:
    def expect(name: str) -> None:
        assert units_of(name, tmp_path) == CASES[name]["units"]

    expect_of_every(((name, name) for name in RUN), expect)


def test_nothing_of_the_tower_has_a_gradient_or_states() -> None:
    assert {(row["gradients"], row["states"], row["changed"]) for row in CASES.values()} == {(0, 0, 0)}


def test_traffic_is_what_was_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in RUN), lambda name: expect_traffic(name, tmp_path))


def test_peaks_are_what_was_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in RUN), lambda name: expect_peaks(name, tmp_path))
