"""Whole steps of torchtitan under FSDP2 and tensor parallelism: the peak by category, and every collective."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from eventlog import collectives_apart
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import build, model_config
from simcore.operators.torchtitan.gpt_oss import block_masks
from simcore.results.report import RankReport, TrafficRow
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "torchtitan-0.2.2-torch-2.13.0.json"
FILES = (TRUTH, TRUTH.with_name("torchtitan-layers-0.2.2.json"),
         TRUTH.with_name("torchtitan-experts-0.2.2-torch-2.13.0.json"),
         TRUTH.with_name("torchtitan-oss-0.2.2-torch-2.13.0.json"))
CASES: dict[str, Any] = {("oss-" if "-oss-" in file.stem else "") + name: case for file in FILES
                         for name, case in json.loads(file.read_text(encoding="utf-8")).items()}
ELSEWHERE = {"buffer", "workspace", "opt_state"}
"""The rotary table is a buffer there and a workspace here; Adam's step counters (4 bytes each) are not counted here."""


def preset(case: dict[str, Any]) -> str:
    """The configuration that a case's shape is laid over."""
    if "sliding_window" in case["model"]:
        return "gpt-oss-20b"
    if "interleave_moe_layer_step" in case["model"]:
        return "llama-4-scout-text"
    if "kv_lora_rank" in case["model"]:
        return "deepseek-v3" if case["model"].get("n_group", 1) > 1 else "deepseek-v2-lite"
    if "num_experts" in case["model"]:
        return "qwen3-30b-a3b"
    return "qwen3-8b" if "head_dim" in case["model"] else "llama-tiny"


def scenario_of(case: dict[str, Any]) -> dict[str, Any]:
    tp, cp, batch = case.get("tp", 1), case.get("cp", 1), case.get("batch", 1)
    replicas, mode = case.get("dp_replicate", 1), case.get("checkpoint", "none")
    sizes = case["model"]
    if "interleave_moe_layer_step" in sizes:
        nope, count = sizes.get("every_n_layers_nope"), sizes["num_hidden_layers"]
        sizes = {k: v for k, v in sizes.items() if k != "every_n_layers_nope"} | {
                         "no_rope_layers": [int(not nope or i % nope > 0) for i in range(count)],
                         "head_dim": sizes["hidden_size"] // sizes["num_attention_heads"]}
    shards, reshard = case["world"] // replicas // tp // cp, case.get("reshard", "default")
    return {
        "name": "torchtitan", "model": {"config": preset(case), "overrides": sizes}, "framework": "fsdp2",
        "implementation": "torchtitan", "topology": "dgx-h100", "mesh": {
            "dp_replicate": replicas, "dp_shard": shards, "cp": cp, "tp": tp, "ep": case.get("ep", 1),
            "etp": case.get("etp", 1)},
        "training": {
            "seq_len": case["seq"], "micro_batch_size": batch, "global_batch_size": batch * shards * replicas,
            "recompute": {"mode": "per_op"} if mode == "op" else mode if isinstance(mode, str) else {
                "mode": "every", "num_layers": mode},
            "precision": {"compute": case.get("compute", "bf16")}},
        "framework_options": {
            **{k: case[k] for k in ("early_stop", "disable_loss_parallel", "repeat_kv") if k in case},
            **({} if reshard == "default" else {"reshard_after_forward": reshard == "always"})}}


def sizes_of(case: dict[str, Any]) -> dict[str, int]:
    """Ranks of each axis."""
    tp, cp, ep, etp, replicas = (case.get(name, 1) for name in ("tp", "cp", "ep", "etp", "dp_replicate"))
    inside = case["world"] // replicas
    return {"tp": tp, "cp": cp, "dp_shard_cp": inside // tp, "ep": ep, "expert_dp": case["world"] // ep // etp,
            "dp_cp": case["world"] // tp,
            "expert_dp_shard": inside // ep // etp, "expert_dp_replicate": replicas, "dp_replicate": replicas}


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
    case = CASES[name]["case"]
    masks = block_masks(case["seq"]) if "sliding_window" in case["model"] else 0  # made outside of the measured step
    assert theirs["buffer"] == ours["workspace"] - masks + _counts_of_experts(case["model"])


def _counts_of_experts(model: dict[str, Any]) -> int:
    """Two fp32 numbers an expert, in every layer that has experts."""
    experts = sum(model.get(name, 0) for name in ("num_experts", "n_routed_experts", "num_local_experts"))
    layers = model["num_hidden_layers"] // model.get("interleave_moe_layer_step", 1)
    return int(8 * experts * (layers - model.get("first_k_dense_replace", 0)))


@pytest.mark.parametrize("name", CASES)
def test_every_collective_of_a_step(name: str) -> None:
    row = CASES[name]
    assert collectives_apart(whole_step(row), ringed(ran(name).traffic), sizes_of(row["case"])) == {}


def ringed(traffic: Iterable[TrafficRow]) -> list[TrafficRow]:
    """Messages of a ring as torch sends them: an all-to-all of one message to the next rank."""
    return [row.model_copy(update={"collective": "all_to_all"}) if (row.collective, row.axis) == ("send_recv", "cp")
            else row for row in traffic]


def whole_step(row: dict[str, Any]) -> Counter[str]:
    """Collectives of forward and backward, and those that balance routers, but Qwen3's: not measured on one rank's."""
    case = row["case"]
    counts, ranks = _counts_of_experts(case["model"]) // 2, sizes_of(case)["dp_cp"]
    balance = [f"all_reduce {counts} {ranks}"] if "num_experts" not in case["model"] and counts else []
    return Counter(row["traffic"]) + Counter(row.get("balance", balance))


@pytest.mark.parametrize("name", CASES)
def test_what_rests_on_the_first_rank(name: str) -> None:
    numel = sum(math.prod(shape) for shape in CASES[name]["shapes"].values())
    layers = sum(math.prod(shape) for one, shape in CASES[name]["shapes"].items() if one.startswith("layers."))
    narrow = 2 * layers if name.startswith("oss-") else 0  # GPT-OSS's layers are made in bf16
    assert sum(a.params_bytes for a in ran(name).at_rest.values()) == 4 * numel - narrow


@pytest.mark.parametrize("name", ["none", "qwen3", "deepseek", "oss-none"])
def test_names_are_torchtitan_s_own(name: str) -> None:
    case = CASES[name]["case"]
    graph = build(model_config(preset(case), case["model"], "test"), "torchtitan")
    named = {layer.path: [t.name for t in graph.tensors[layer.kind] if t.is_owned] for layer in graph.layers}
    for number in range(case["model"]["num_hidden_layers"]):
        theirs = [one for one in CASES[name]["shapes"] if one.startswith(f"layers.{number}.")]
        assert [f"layers.{number}.{one}" for one in named[f"model.layers.{number}"]] == theirs
