"""Whole steps of llm-foundry's MPT: peaks under FSDP2, what torch's FSDP1 sends and when its units are whole."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.fsdp1.flat_parameters import flat_units
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import build, model_config
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan, place
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.recording.tape import Op
from simcore.results.report import RankReport
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "llmfoundry-0.3.0-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
DEFAULTS = {"no_bias": False, "attn_config": {"alibi": False}}
"""Defaults of llm-foundry 0.3.0 `models/mpt/configuration_mpt.py`; the published models say otherwise."""


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    return {"config": "mpt-7b", "overrides": {**DEFAULTS, **case["model"], **_attention(case)}}


def _attention(case: dict[str, Any]) -> dict[str, Any]:
    return {"attn_config": case["attn"]} if "attn" in case else {}


@cache
def ran(name: str) -> RankReport:
    case = CASES[name]["case"]
    asked = {
        "name": "mpt", "model": config_of(case), "framework": "fsdp2", "implementation": "llmfoundry",
        "topology": "dgx-h100", "mesh": {"dp_shard": case["world"]}, "training": {
            "seq_len": case["seq"], "micro_batch_size": case["batch"],
            "global_batch_size": case["batch"] * case["world"], "recompute": "full" if "checkpoint" in case else "none",
            "optimizer": {"name": "adamw", "implementation": "fused"}},
        "framework_options": {"attn_impl": case["attn_impl"]}}
    report = simulate(parse_scenario(parse_document(json.dumps(asked), "x.json")))
    assert report.status == "ok", report.problems
    return report.ranks[0]


@pytest.mark.parametrize("name", CASES)
def test_what_is_there_at_the_peak_of_forward_and_backward(name: str) -> None:
    """But for Adam's step counters, 4 bytes a parameter. ALiBi's bias, once made, is a workspace here."""
    peak, theirs = ran(name).peak, CASES[name]["breakdown"]
    assert peak is not None
    ours = peak.by_category
    apart = {k: theirs.get(k, 0) - ours.get(k, 0) for k in {*ours, *theirs} - {"workspace"}}
    apart["activation"] -= ours.get("workspace", 0)
    assert {k: size for k, size in apart.items() if size} == {"opt_state": 4 * len(CASES[name]["shapes"])}


@pytest.mark.parametrize("name", CASES)
def test_what_rests_on_the_first_rank(name: str) -> None:
    numel = sum(math.prod(shape) for shape in CASES[name]["shapes"].values())
    assert sum(a.params_bytes for a in ran(name).at_rest.values()) == 4 * numel


def test_names_are_llm_foundry_s_own() -> None:
    case = CASES["triton"]["case"]
    graph = build(model_config("mpt-7b", config_of(case)["overrides"], "test"), "llmfoundry")
    named = [f"{layer.path}.{spec.name}" for layer in graph.layers for spec in graph.tensors[layer.kind]
             if not spec.tied]
    assert named == list(CASES["triton"]["shapes"])


# ---- FSDP1 ----------------------------------------------------------------------------------------------------------
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(
    (TRUTH.parents[1] / "fsdp1" / "llmfoundry-0.3.0-torch-2.13.0.json").read_text(encoding="utf-8"))}
OPTIONS = {"backward_prefetch": "backward_prefetch", "forward_prefetch": "forward_prefetch",
           "strategy": "sharding_strategy"}


@cache
def made(name: str) -> tuple[Program, Plan]:
    case = ROWS[name]["case"]
    asked = small.scenario(
        "fsdp1", {"dp_shard": case["ranks"]}, microbatches=case.get("microbatches", 1), seq_len=32,
        model=config_of({"model": {**case["model"], "vocab_size": 128}}),
        options={ours: case[theirs] for theirs, ours in OPTIONS.items() if theirs in case})
    job, table = prepare(asked.model_copy(update={"implementation": "llmfoundry"}))
    plan = place(job.graph, job.mesh, table, 0)
    passes = actions(table.schedule, plan.stage, asked.num_microbatches)
    return lower(plan, Workload(1, 32, 0), passes, hooks_of(table)), plan


@pytest.mark.parametrize("name", ROWS)
def test_flat_parameters_have_torchs_length(name: str) -> None:
    assert [[unit.numel, unit.shard] for unit in flat_units(made(name)[1])] == ROWS[name]["units"]


@pytest.mark.parametrize("name", ROWS)
def test_what_is_sent_and_when_units_come_and_go(name: str) -> None:
    """The token embedding is gathered for itself and for the head, and stays from the head's backward to its own."""
    program, plan = made(name)
    sizes = {2 * shard * ROWS[name]["case"]["ranks"]: number
             for number, (_, shard) in reversed(list(enumerate(ROWS[name]["units"])))}
    firsts = [unit.first for unit in plan.framework.units]
    comms = {number: kind for (kind, _, _), number in program.tables.comms.items()}
    whole = {owner: number for (owner, _), number in program.tables.slots.items()}["flat_param"]
    found: list[list[Any]] = []
    for op, layer, slot, amount, _, _ in program.columns.tolist():
        if op == Op.COLLECTIVE:
            found.append([comms[slot], amount])
        elif op in (Op.ALLOC, Op.FREE) and slot == whole and amount:
            number = firsts.index(layer) if firsts.count(layer) == 1 else sizes[abs(amount)]
            found.append(["+" if op == Op.ALLOC else "-", number])
    assert found == ROWS[name]["step"]
