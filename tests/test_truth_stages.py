"""Ranks of torchtitan's pipeline under FSDP2: what is there at the peak of a step, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import RankReport
from simcore.simulate import simulate
from truth_cases import joined

TRUTH = ROOT / "tests/truth" / "tape" / "torchtitan-stages-0.2.2-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
PASSES = {"activation": "passes", "backward_temp": "passes", "recompute": "passes"}
"""Buffers to receive into were made before the first pass there; here they are what is received."""
ELSEWHERE = {"buffer", "workspace", "input"}
"""A rotary table for every chunk there, one here; the whole batch there, the microbatches in flight here."""


def schedule_of(case: dict[str, Any]) -> str:
    zero_bubble = "interleaved_zb" if case.get("virtual", 1) > 1 else "zb_h1"
    names = {"ZBVZeroBubble": "zbv", "InterleavedZeroBubble": zero_bubble}
    return names.get(case.get("schedule", ""), "1f1b")


def scenario_of(case: dict[str, Any]) -> dict[str, Any]:
    shards = case["world"] // case["pp"]
    return {
        "name": "stages", "model": {
            "config": "deepseek-v2-lite" if "kv_lora_rank" in case["model"] else "llama-tiny",
            "overrides": case["model"]}, "framework": "fsdp2",
        "implementation": "torchtitan", "topology": "dgx-h100", "mesh": {"pp": case["pp"], "dp_shard": shards,
                                                                                      "ep": case.get("ep", 1)},
        "training": {"seq_len": case["seq"], "micro_batch_size": 1,
                     "recompute": {"mode": "per_op"} if case["checkpoint"] == "op" else case["checkpoint"],
                     "global_batch_size": case["microbatches"] * shards,
                     "pipeline": {"virtual_stages": case.get("virtual", 1), "schedule": schedule_of(case)}},
        "framework_options": {"return_outputs": case.get("return_outputs", False)}}


@cache
def ran(name: str) -> RankReport:
    case = CASES[name]["case"]
    report = simulate(parse_scenario(parse_document(json.dumps(scenario_of(case)), "x.json")))
    assert report.status == "ok", report.problems
    return next(r for r in report.ranks if r.stage == case["rank"] // (case["world"] // case["pp"]))


@pytest.mark.parametrize("name", CASES)
def test_what_is_there_at_the_peak(name: str) -> None:
    """But for Adam's step counters, and the numbers that losses are (12 bytes a microbatch at most).

    And, without checkpoints, for places of rows that microbatches in flight hold beside the latest one's.
    """
    peak, theirs = ran(name).peak, joined(CASES[name]["breakdown"], PASSES, ELSEWHERE)
    assert peak is not None
    theirs["opt_state"] -= 4 * len(CASES[name]["shapes"])
    ours = joined(peak.by_category, PASSES, ELSEWHERE)
    apart = {name: theirs[name] - size for name, size in ours.items() if theirs[name] != size}
    assert set(apart) <= {"passes"}
    case = CASES[name]["case"]
    beside = places(CASES[name]) * (case["pp"] - 1) if case["checkpoint"] == "none" else 0
    assert 0 <= apart.get("passes", 0) <= 12 * case["microbatches"] + beside


def places(row: dict[str, Any]) -> int:
    """Bytes of the places of rows that the experts of the rank's layers hold of one microbatch."""
    case, layers = row["case"], sum(name.endswith("experts.w1") for name in row["shapes"])
    rows = case["seq"] * case["model"].get("num_experts_per_tok", 0)
    return 4 * layers * (rows + 8 * case["model"]["n_routed_experts"] // case["ep"]) if case.get("ep", 1) > 1 else 0


def parts_of(case: dict[str, Any]) -> list[int]:
    """Parts of the model that the rank has."""
    rank, pp, chunks = case["rank"] // (case["world"] // case["pp"]), case["pp"], case.get("virtual", 1)
    return [rank, 2 * pp - 1 - rank] if case.get("schedule") == "ZBVZeroBubble" else list(range(rank, pp * chunks, pp))


@pytest.mark.parametrize("name", CASES)
def test_buffers_are_there_between_steps(name: str) -> None:
    """For what comes down to the rank's parts, and what comes up. Split, the gradients of inputs are still there."""
    case, begins = CASES[name]["case"], CASES[name]["begins"]
    parts, last = parts_of(case), case["pp"] * case.get("virtual", 1) - 1
    borders = sum((part > 0) + (part < last) for part in parts)
    held = sum(part > 0 for part in parts) if "ZeroBubble" in case.get("schedule", "") else 0
    hidden = 2 * case["seq"] * case["model"]["hidden_size"]
    logits = 2 * case["seq"] * case["model"]["vocab_size"] * case.get("return_outputs", False)
    within = hidden * (sorted(parts) in ([p, p + 1] for p in parts))  # one part's gradient is the other's buffer
    assert (begins["activation"] - places(CASES[name])) // case["microbatches"] == borders * hidden + logits - within
    assert begins.get("backward_temp", 0) // case["microbatches"] == held * hidden
