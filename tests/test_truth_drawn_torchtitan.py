"""Layouts of torchtitan's experts drawn at random (`tests/truth/draw_titan.py`), against torchtitan itself."""

from __future__ import annotations

import json
import math
from typing import Any

from checkout import ROOT
from eventlog import collectives_apart
from simcore.errors import IllegalLayout
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.placement.plan import Plan
from simcore.simulation.report import report
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step import program_of
from test_truth_torchtitan import ELSEWHERE, ringed, scenario_of, sizes_of, whole_step
from truth_cases import told_layouts

CASES, LLAMA4, NOPE, OSS = (json.loads((ROOT / f"tests/truth/tape/torchtitan-{name}-0.2.2-torch-2.13.0.json").read_text(
    encoding="utf-8")) for name in ("drawn", "drawn-llama4", "nope", "drawn-oss"))
PARTS = {"embedding": "tok_embeddings", "final_norm": "norm", "head": "output"}


def scenario(case: dict[str, Any]) -> Scenario:
    return parse_scenario(parse_document(json.dumps(scenario_of(case)), "drawn.json"))


def placed(plan: Plan) -> dict[str, int]:
    """Elements of every parameter on the rank, by torchtitan's names."""
    found: dict[str, int] = {}
    for layer in (plan.graph.layers[number] for number in plan.layers):
        prefix = PARTS.get(plan.graph.kinds[layer.kind].name, layer.path.removeprefix("model."))
        found |= {f"{prefix}.{one.spec.name}": one.local for one in plan.of_layer(layer.index)
                  if not one.spec.is_buffer}
    return found


def differences(row: dict[str, Any]) -> list[Any]:
    """Parameters, collectives and bytes at the peak by category of one case that are not torchtitan's."""
    case, rank = row["case"], row["case"]["rank"]
    parts = placed_simulation(scenario(case), rank=rank)
    parts.num_written = 1
    parts.programs[rank] = program_of(parts, parts.plans[0])
    seen = report(parts, series=False).ranks[0]
    assert seen.peak is not None
    early = {**seen.peak.by_category}
    early["activation"] += table(case) if seen.peak.event.startswith("fwd:pre_forward_begin") else 0
    peaks = [together({k: v for k, v in peak.items() if v and k not in ELSEWHERE}) for peak in (
        early, row["breakdown"])]
    theirs = {name: math.prod(shape) for name, shape in row["shapes"].items()}
    pairs: list[tuple[Any, Any]] = [(placed(parts.plans[0]), theirs), (peaks[0], peaks[1]), (
        collectives_apart(whole_step(row), ringed(seen.traffic), sizes_of(case)), {})]
    return [pair for pair in pairs if pair[0] != pair[1]]


def table(case: dict[str, Any]) -> int:
    """Bytes of Qwen3's rotary table, which FSDP2 casts before it gathers a layer: simulated as behind that."""
    return 4 * int(case["seq"]) * int(case["model"].get("head_dim", 0))


def together(peak: dict[str, int]) -> dict[str, int]:
    """A gradient that DTensor cuts again is one of both: measured as a temporary, simulated as a gradient."""
    both = ("backward_temp", "unsharded_grad")
    return {"backward": sum(peak.get(name, 0) for name in both)} | {k: v for k, v in peak.items() if k not in both}


def test_layouts_drawn_at_random_are_torchtitan_s_own() -> None:
    assert wrongs(CASES) == {}


def test_layouts_of_llama_4_drawn_at_random_are_torchtitan_s_own() -> None:
    """Those with one layer and experts in every second one have none, for which ep is refused here alone."""
    sparse = {name: row for name, row in LLAMA4.items() if has_experts(row["case"]["model"]) or "error" in row}
    assert wrongs(sparse) == {}
    refused = sum("error" in row for row in sparse.values())
    assert told_layouts("tape/torchtitan-drawn-llama4-*") == (
        len(LLAMA4), len(sparse) - refused, refused, len(LLAMA4) - len(sparse))


def test_layouts_of_gpt_oss_drawn_at_random_are_torchtitan_s_own() -> None:
    assert wrongs(OSS) == {}
    refused = sum("error" in row for row in OSS.values())
    assert told_layouts("tape/torchtitan-drawn-oss-*") == (len(OSS), len(OSS) - refused, refused)


def test_layers_of_llama_4_that_rotate_nothing_are_torchtitan_s_own() -> None:
    """Every second one, also where ranks share sequences."""
    assert wrongs(NOPE) == {}


def has_experts(model: dict[str, Any]) -> bool:
    return bool(model["num_hidden_layers"] >= model["interleave_moe_layer_step"])


def wrongs(cases: dict[str, Any]) -> dict[str, Any]:
    """Differences of every case that has some."""
    wrong: dict[str, Any] = {}
    for name, row in cases.items():
        if "error" in row:
            try:
                placed_simulation(scenario(row["case"]), rank=0)
            except IllegalLayout as refused:
                wrong |= {} if row["error"] in str(refused) else {name: str(refused)}
            else:
                wrong[name] = "is not refused"
        elif found := differences(row):
            wrong[name] = found
    return wrong
