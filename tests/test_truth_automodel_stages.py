"""Pipeline ranks of Automodel: contents of the peak of a step, and traffic, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.inputs.scenario import Scenario
from simcore.results.report import RankReport
from simcore.simulate import simulate
from truth_cases import joined

TRUTH = ROOT / "tests/truth" / "tape"
DENSE: dict[str, Any] = json.loads((TRUTH / "automodel-dense-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
STAGES: dict[str, Any] = json.loads((TRUTH / "automodel-stages-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
EXPERTS = ("num_local_experts", "num_experts_per_tok")
VERSIONS = {"llama": "0.4.0"}
"""A stand-in norm saves its statistics (`rms_norm: torch`), which Automodel's own do in 0.4.0, and not in 0.7.0."""
PRESETS = {"qwen3": "qwen3-8b", "llama": "llama-3.1-8b", "qwen2": "qwen2.5-7b", "mixtral": "mixtral-8x7b"}
WORLD, SEQ, LAYERS = 8, 512, 6
PASSES = {"activation": "passes", "backward_temp": "passes", "recompute": "passes", "workspace": "passes"}
"""A buffer of a received tensor is an activation there; here its bytes are what was received while it is in use.
The cache of angles is made in the first forward."""
ELSEWHERE = {"buffer", "input", "opt_state"}
"""The whole batch there, the microbatches in flight here; frequencies; Adam's counters of steps."""
OPTIONS = ("reshard_after_forward", "defer_fsdp_grad_sync", "pp_recv_buffer_pool", "pp_recv_buffer_pool_slack")


@cache
def ran(name: str) -> RankReport:
    case = STAGES[name]["case"]
    pp, tp, world = case["pp"], case.get("tp", 1), case.get("world", WORLD)
    overrides = DENSE["shape"] | {"num_hidden_layers": LAYERS}
    overrides |= {key: DENSE["experts"][key] for key in EXPERTS * (case["family"] == "mixtral")}
    options = {key: case[key] for key in OPTIONS if key in case}
    by_hf = {"implementation": "hf"} if case.get("hf") else {}
    options |= {"use_liger_kernel": False} if by_hf else {}  # none was there
    options |= {"local_batch_size": case["microbatches"]} if "schedules" in case else {}
    asked = small.scenario("automodel", {"pp": pp, "dp_shard": world // pp // tp, "tp": tp}, seq_len=SEQ,
                           options=options,
                           version="auto" if by_hf else VERSIONS.get(case["family"], "auto"),
                           model={"config": PRESETS[case["family"]], "overrides": overrides},
                           recompute="full" if case.get("checkpoint") else "none",
                           pipeline={"virtual_stages": case.get("chunks", 1)},
                           global_batch_size=case["microbatches"] * case.get("schedules", 1) * world // pp // tp,
                           optimizer={"implementation": "fused"}).normalised()
    report = simulate(Scenario.model_validate(asked | by_hf))
    assert report.status == "ok", report.problems
    return next(rank for rank in report.ranks if rank.stage == case["rank"] // (world // pp))


SHORT = "first interleaved and checkpointed"
"""Chunks of one layer that is replayed: the buffer of its output's gradient is counted as free once that is used."""


@pytest.mark.parametrize("name", STAGES)
def test_what_is_there_at_the_peak(name: str) -> None:
    peak, theirs = ran(name).peak, joined(STAGES[name]["breakdown"], PASSES, ELSEWHERE)
    assert peak is not None
    case = STAGES[name]["case"]
    is_last = case["rank"] // (case.get("world", WORLD) // case["pp"]) == case["pp"] - 1
    theirs["passes"] -= 4 * (case["microbatches"] - 1) * is_last  # losses of the other microbatches, a number each
    theirs["passes"] -= 2 * SEQ * DENSE["shape"]["hidden_size"] * (name == SHORT)
    assert joined(peak.by_category, PASSES, ELSEWHERE) == theirs


@pytest.mark.parametrize("name", STAGES)
def test_what_is_sent_to_shards(name: str) -> None:
    measured: Counter[tuple[str, str]] = Counter()
    for key, sent in STAGES[name]["traffic"].items():
        collective, phase, *_ = key.split("|")
        whole = STAGES[name]["case"].get("tp", 1) if collective == "all_gather_into_tensor" else 1  # its input is told
        place = collective.removesuffix("_into_tensor"), {"fwd": "forward", "bwd": "backward"}[phase]
        measured[place] += sent["payload_bytes"] * whole
    found: Counter[tuple[str, str]] = Counter()
    for traffic in ran(name).traffic:
        if traffic.axis != "pp":
            found[traffic.collective, traffic.phase] += traffic.payload_bytes
    assert found == measured
