"""Whole steps of KempnerForge under FSDP2 and tensor parallelism: the peak by category, and every collective."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest

import small
from checkout import ROOT
from eventlog import collectives_apart
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import build, model_config
from simcore.results.report import RankReport
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "kempnerforge-5666d0d16153-torch-2.13.0.json"
CASES: dict[str, Any] = {name: row for name, row in json.loads(TRUTH.read_text(encoding="utf-8")).items()
                         if not row["case"].get("stage")}
"""But for stages of a pipeline: their layers are asked for in `test_operators_kempnerforge.py`."""
ELSEWHERE = {"buffer", "workspace", "opt_state"}
"""The rotary tables are buffers there and workspaces here; Adam's step counters (4 bytes each) are not counted here."""


def scenario_of(case: dict[str, Any]) -> dict[str, Any]:
    tp, batch, mode = case.get("tp", 1), case.get("batch", 1), case.get("checkpoint", "none")
    shards = case["world"] // tp
    preset = "mixtral-8x7b" if "num_local_experts" in case["model"] else "llama-tiny"
    return {
        "name": "kempnerforge", "model": {"config": preset, "overrides": case["model"]}, "framework": "fsdp2",
        "implementation": "kempnerforge", "topology": "dgx-h100", "mesh": {"dp_shard": shards, "tp": tp},
        "training": {
            "seq_len": case["seq"], "micro_batch_size": batch,
            "global_batch_size": batch * shards * case.get("grad_accum", 1),
            "recompute": ["attention"] if mode == "selective" else mode, "routing": "balanced"},
        "framework_options": {"packed_experts": True} if case.get("packed") else {}}


@cache
def ran(name: str) -> RankReport:
    report = simulate(parse_scenario(parse_document(json.dumps(scenario_of(CASES[name]["case"])), "x.json")))
    assert report.status == "ok", report.problems
    return report.ranks[0]


def numbers(case: dict[str, Any]) -> int:
    """Bytes of what is not recorded of a model with experts: numbers, and in each layer vectors of one an expert."""
    experts, layers = case["model"].get("num_local_experts", 0), case["model"]["num_hidden_layers"]
    return layers * 3 * 4 * experts if experts else 0


@pytest.mark.parametrize("name", CASES)
def test_what_is_there_at_the_peak_of_forward_and_backward(name: str) -> None:
    peak, theirs = ran(name).peak, CASES[name]["breakdown"]
    assert peak is not None
    ours = peak.by_category
    apart = {k: abs(ours.get(k, 0) - theirs.get(k, 0)) for k in {*ours, *theirs} - ELSEWHERE}
    assert max(apart.values()) <= numbers(CASES[name]["case"]), apart
    counters = 4 * len(CASES[name]["shapes"])
    assert theirs["opt_state"] - ours["opt_state"] == counters
    assert theirs["buffer"] == ours["workspace"]


@pytest.mark.parametrize("name", CASES)
def test_every_collective_of_a_step(name: str) -> None:
    """But sums of norms' gradients over tp where several microbatches accumulate: FSDP2 sums once, in fp32."""
    case = CASES[name]["case"]
    sizes = {"tp": case.get("tp", 1), "dp_shard_cp": case["world"] // case.get("tp", 1)}
    summed_once = {"all_reduce"} if case.get("grad_accum", 1) > 1 else set()
    apart = collectives_apart(CASES[name]["traffic"], ran(name).traffic, sizes)
    assert {kind for kind, _ in apart} <= summed_once, apart


@pytest.mark.parametrize("name", CASES)
def test_what_rests_on_the_first_rank(name: str) -> None:
    numel = sum(math.prod(shape) for shape in CASES[name]["shapes"].values())
    assert sum(a.params_bytes for a in ran(name).at_rest.values()) == 2 * numel


def test_names_are_kempnerforge_s_own() -> None:
    graph = build(model_config("llama-tiny", CASES["none"]["case"]["model"], "test"), "kempnerforge")
    named = {layer.path: [t.name for t in graph.tensors[layer.kind]] for layer in graph.layers}
    theirs = [name for name in CASES["none"]["shapes"] if name.startswith("layers.0.")]
    assert [f"layers.0.{name}" for name in named["model.layers.0"]] == theirs


COMPILED = json.loads((TRUTH.parents[1] / "compiled" / "kempnerforge-5666d0d16153.json").read_text(encoding="utf-8"))


def of_a_layer(**options: bool) -> dict[str, int]:
    """Calls over tensor parallel ranks that one more layer makes in a step."""
    found = []
    for layers in (2, 3):
        model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": layers}}
        report = simulate(small.scenario("fsdp2", {"dp_shard": 2, "tp": 2}, model=model, options=dict(options),
                                         implementation="kempnerforge"))
        assert report.status == "ok", report.problems
        found.append({name: sum(t.calls for t in report.ranks[0].traffic if (t.collective, t.axis) == (name, "tp"))
                      for name in ("all_gather", "reduce_scatter")})
    few, many = found
    return {name: many[name] - few[name] for name in few}


@pytest.mark.parametrize(("options", "ran"), [({}, "eager"), ({"compile": True}, "compiled")])
def test_linears_that_are_compiled_together_gather_their_input_once(options: dict[str, bool], ran: str) -> None:
    theirs = COMPILED[ran]
    assert of_a_layer(**options) == {name: sum(theirs[way][name] for way in theirs)
                                     for name in ("all_gather", "reduce_scatter")}
