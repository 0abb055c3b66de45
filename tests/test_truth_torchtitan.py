"""Whole steps of torchtitan under FSDP2 and tensor parallelism: the peak by category, and every collective."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from eventlog import collectives_apart
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import build, model_config
from simcore.results.report import RankReport
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "torchtitan-0.2.2-torch-2.13.0.json"
CASES: dict[str, Any] = {name: case for file in (TRUTH, TRUTH.with_name("torchtitan-layers-0.2.2.json"))
                         for name, case in json.loads(file.read_text(encoding="utf-8")).items()}
ELSEWHERE = {"buffer", "workspace", "opt_state"}
"""The rotary table is a buffer there and a workspace here; Adam's step counters (4 bytes each) are not counted here."""


def preset(case: dict[str, Any]) -> str:
    """The configuration that a case's shape is laid over."""
    if "kv_lora_rank" in case["model"]:
        return "deepseek-v2-lite"
    return "qwen3-8b" if "head_dim" in case["model"] else "llama-tiny"


def scenario_of(case: dict[str, Any]) -> dict[str, Any]:
    tp, cp, batch = case.get("tp", 1), case.get("cp", 1), case.get("batch", 1)
    shards, mode = case["world"] // tp // cp, case.get("checkpoint", "none")
    return {
        "name": "torchtitan", "model": {"config": preset(case), "overrides": case["model"]}, "framework": "fsdp2",
        "implementation": "torchtitan", "topology": "dgx-h100", "mesh": {"dp_shard": shards, "cp": cp, "tp": tp},
        "training": {
            "seq_len": case["seq"], "micro_batch_size": batch, "global_batch_size": batch * shards,
            "recompute": {"mode": "per_op"} if mode == "op" else mode if isinstance(mode, str) else {
                "mode": "every", "num_layers": mode},
            "precision": {"compute": case.get("compute", "bf16")}},
        "framework_options": {k: case[k] for k in ("early_stop", "disable_loss_parallel", "repeat_kv") if k in case}}


@cache
def ran(name: str) -> RankReport:
    report = simulate(parse_scenario(parse_document(json.dumps(scenario_of(CASES[name]["case"])), "x.json")))
    assert report.status == "ok", report.problems
    return report.ranks[0]


@pytest.mark.parametrize("name", CASES)
def test_what_is_there_at_the_peak_of_forward_and_backward(name: str) -> None:
    peak, theirs = ran(name).peak, CASES[name]["breakdown"]
    assert peak is not None
    ours = peak.by_category
    assert {k: v for k, v in ours.items() if k not in ELSEWHERE} == {
        k: v for k, v in theirs.items() if k not in ELSEWHERE}
    counters = 4 * len(CASES[name]["shapes"])
    assert theirs["opt_state"] - ours["opt_state"] == counters
    assert theirs["buffer"] == ours["workspace"] + _counts_of_experts(CASES[name]["case"]["model"])


def _counts_of_experts(model: dict[str, Any]) -> int:
    """Two fp32 numbers an expert, in every layer that has experts."""
    return int(8 * model.get("n_routed_experts", 0)
               * (model["num_hidden_layers"] - model.get("first_k_dense_replace", 0)))


@pytest.mark.parametrize("name", CASES)
def test_every_collective_of_a_step(name: str) -> None:
    case = CASES[name]["case"]
    sizes = {"tp": case.get("tp", 1), "cp": case.get("cp", 1), "dp_shard_cp": case["world"] // case.get("tp", 1)}
    measured = {key.replace("all_to_all", "send_recv"): count for key, count in CASES[name]["traffic"].items()}
    assert collectives_apart(measured, ran(name).traffic, sizes) == {}  # a ring's all-to-all is of one message


@pytest.mark.parametrize("name", CASES)
def test_what_rests_on_the_first_rank(name: str) -> None:
    numel = sum(math.prod(shape) for shape in CASES[name]["shapes"].values())
    assert sum(a.params_bytes for a in ran(name).at_rest.values()) == 4 * numel


@pytest.mark.parametrize("name", ["none", "qwen3", "deepseek"])
def test_names_are_torchtitan_s_own(name: str) -> None:
    case = CASES[name]["case"]
    graph = build(model_config(preset(case), case["model"], "test"), "torchtitan")
    named = {layer.path: [t.name for t in graph.tensors[layer.kind] if t.is_owned] for layer in graph.layers}
    for number in range(case["model"]["num_hidden_layers"]):
        theirs = [one for one in CASES[name]["shapes"] if one.startswith(f"layers.{number}.")]
        assert [f"layers.{number}.{one}" for one in named[f"model.layers.{number}"]] == theirs
