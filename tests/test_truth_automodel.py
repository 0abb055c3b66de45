"""Whole steps that Automodel wrapped itself: peaks and their parts, traffic, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.inputs.scenario import Scenario
from simcore.results.report import RankReport
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape"
DENSE: dict[str, Any] = json.loads((TRUTH / "automodel-dense-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
STEPS: dict[str, Any] = json.loads((TRUTH / "automodel-steps-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
EXPERTS = {"mixtral": ("num_local_experts", "num_experts_per_tok")}
PRESETS = {"llama": "llama-3.1-8b", "qwen3": "qwen3-8b", "mistral": "mistral-7b-v0.3", "phi3": "phi-4",
           "gemma": "gemma-7b", "gemma2": "gemma-2-2b", "gemma3_text": "gemma-3-270m", "granite": "granite-3.3-2b",
           "olmo2": "olmo-2-1b", "mixtral": "mixtral-8x7b", "falcon_h1": "falcon-h1-34b",
           "nemotron_h": "nemotron-3-nano-4b"}
LEFT_OUT = ("opt_state", "buffer")
"""Adam counts the steps of each parameter in 4 bytes; frequencies are cast with the model, or kept twice."""


def _ran(case: dict[str, Any]) -> RankReport:
    overrides = DENSE["shape"] | {key: DENSE["experts"][key] for key in EXPERTS.get(case["family"], ())}
    overrides |= {"tie_word_embeddings": case.get("tied", False)} | case.get("fields", {})
    options = {"enable_fsdp2_prefetch": True} if case.get("enable_fsdp2_prefetch") else {}
    options |= {"attn_implementation": case["attention"]} if "attention" in case else {}
    without_liger = case["family"] == "mistral" or (case.get("hf") and case["family"] == "qwen3")
    options |= {"use_liger_kernel": False} if without_liger else {}  # none was there
    adapters: dict[str, Any] = {}
    if "lora" in case:
        options |= {"use_memory_efficient_lora": False}
        adapters = {"method": "lora", "lora": {"rank": case["lora"], "target_modules": case["target_modules"]}}
    tp, world = case.get("tp", 1), case.get("world", 8)
    asked = small.scenario("automodel", {"dp_shard": world // tp, "tp": tp}, seq_len=512, options=options,
                           model={"config": PRESETS[case["family"]], "overrides": overrides},
                           recompute="full" if case.get("checkpoint") else "none",
                           optimizer={"implementation": "fused"}, **adapters).normalised()
    report = simulate(Scenario.model_validate(asked | ({"implementation": "hf"} if case.get("hf") else {})))
    assert report.status == "ok", report.problems
    return report.ranks[0]


@pytest.mark.parametrize("name", STEPS)
def test_the_peak_is_made_of_what_was_measured(name: str) -> None:
    """To the byte. Tables that rest are an activation there, for they are made in forward."""
    measured = STEPS[name]["backward"]["breakdown"]
    peak = _ran(STEPS[name]["case"]).peak
    assert peak is not None
    found = dict(peak.by_category)
    found["activation"] += found.pop("workspace", 0)
    assert {k: v for k, v in found.items() if k not in LEFT_OUT} == {
        k: v for k, v in measured.items() if k not in LEFT_OUT}
    idle = "mamba" in str(STEPS[name]["case"].get("fields")) and "lora" in STEPS[name]["case"]
    shards = 8 // STEPS[name]["case"].get("tp", 1)
    never = 3 * 2 * 2 * 8 * 2 * 256 // shards * idle  # Mamba's kernel reads out_proj's weight, not through its adapter
    assert abs(found["opt_state"] - never - measured["opt_state"]) <= 4 * 54
    assert abs(found.get("buffer", 0) - measured.get("buffer", 0)) <= 128


@pytest.mark.parametrize("name", STEPS)
def test_forward_is_as_high_as_measured(name: str) -> None:
    row = STEPS[name]
    peak = _ran(row["case"]).peak
    assert peak is not None
    apart = sum(row["backward"]["breakdown"].get(k, 0) - peak.by_category.get(k, 0) for k in LEFT_OUT)
    own = row["case"]["family"] == "qwen3" and "hf" not in row["case"]
    inside = "attention" in row["case"] and own and "checkpoint" not in row["case"]
    positions = 8 * 512 * inside  # held while the model runs forward; other peaks are behind it
    assert row["forward"]["peak"] - peak.by_phase["forward"] == apart + positions


@pytest.mark.parametrize("name", STEPS)
def test_what_is_sent_is_what_was_measured(name: str) -> None:
    row = STEPS[name]
    phases = {"fwd": "forward", "bwd": "backward", "recompute": "recompute"}
    measured, found = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for key, sent in row["traffic"].items():
        collective, phase, *_ = key.split("|")
        whole = row["case"].get("tp", 1) if collective == "all_gather_into_tensor" else 1  # its input is told
        place = collective.removesuffix("_tensor").removesuffix("_into"), phases[phase]
        measured += {(*place, "calls"): sent["count"], (*place, "bytes"): sent["payload_bytes"] * whole}
    for t in _ran(row["case"]).traffic:  # a CPU gathers what a GPU exchanges
        sent, whole = ("all_gather", row["case"]["tp"]) if t.collective == "all_to_all" else (t.collective, 1)
        found += {(sent, t.phase, "calls"): t.calls, (sent, t.phase, "bytes"): t.payload_bytes * whole}
    assert found == measured
