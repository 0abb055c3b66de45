"""Whole steps of llm-foundry's MPT under FSDP2: the peak by category, what rests, names."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simcore.document import parse_document
from simcore.graph import build, model_config
from simcore.report import RankReport
from simcore.scenario import parse_scenario
from simcore.simulate import simulate

TRUTH = Path(__file__).parent / "truth" / "tape" / "llmfoundry-0.3.0-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
DEFAULTS = {"no_bias": False, "attn_config": {"alibi": False}}
"""Of llm-foundry 0.3.0 `models/mpt/configuration_mpt.py`; the published models say otherwise."""


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
