"""Whole steps of DeepSeek-V4 that Automodel wrapped itself: peaks, traffic, units, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.operators.automodel import moe as module
from simcore.operators.automodel.env import Env
from simcore.operators.shared import aten
from simcore.recording.tape import Tensor
from simcore.results.report import RankReport
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-compressed-steps-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
STEPS: dict[str, Any] = STORED["steps"]
EXPERTS = 2 * 3 * 256 * 48 * 4
"""Elements of the routed experts of a rank, which the probe's never train: two in each of four layers."""
LEFT_OUT = ("opt_state", "buffer", "ignored_param", "init_temp")
"""Categories left out: Adam's counts of steps; frequencies; experts, which are outside FSDP2."""


@pytest.fixture(autouse=True)
def _weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts that multiply a token by the sum of its weights, as the probe's do."""
    def experts(env: Env, x: Tensor, weights: Tensor, _indices: Tensor, _block: object, _path: str) -> Tensor:
        return aten.mul(env.tape, x, aten.sum_last(env.tape, weights, keepdim=True))

    monkeypatch.setattr(module, "_experts", experts)


def _ran(case: dict[str, Any]) -> RankReport:
    report = simulate(small.scenario(
        "automodel", {"dp_shard": 8, "ep": 8}, seq_len=512, options={"attn": case["backend"]},
        model={"config": "deepseek-v4-flash", "overrides": STORED["shape"]}, optimizer={"implementation": "fused"},
        recompute="full" if case.get("checkpoint") else "none"))
    assert report.status == "ok", report.problems
    return report.ranks[0]


LOAD = 8 * STORED["shape"]["n_routed_experts"]
"""Bytes of a sum of a router's choices. Two routers keep theirs for the next step; replays make them anew."""


@pytest.mark.parametrize("name", STEPS)
def test_the_peak_is_made_of_what_was_measured(name: str) -> None:
    """To the byte, but for the sums of the routers' choices."""
    row = STEPS[name]
    measured, peak = row["backward"]["breakdown"], _ran(row["case"]).peak
    assert peak is not None
    found = {k: v for k, v in peak.by_category.items() if k not in LEFT_OUT}
    loads = measured["activation"] - found["activation"]
    assert loads // LOAD in ((2, 3, 4) if row["case"].get("checkpoint") else (2,))
    found["activation"] += loads
    assert loads % LOAD == 0
    assert found == {k: v for k, v in measured.items() if k not in LEFT_OUT}
    assert peak.by_category["ignored_param"] == measured["init_temp"] == 2 * EXPERTS
    assert abs(peak.by_category["opt_state"] - 4 * EXPERTS - measured["opt_state"]) <= 4 * 100


@pytest.mark.parametrize("name", STEPS)
def test_forward_is_as_high_as_measured(name: str) -> None:
    row = STEPS[name]
    peak = _ran(row["case"]).peak
    assert peak is not None
    apart = sum(row["backward"]["breakdown"].get(k, 0) - peak.by_category.get(k, 0) for k in LEFT_OUT)
    loads = (4 if row["case"].get("checkpoint") else 2) * LOAD
    assert row["forward"]["peak"] - peak.by_phase["forward"] == apart + loads


@pytest.mark.parametrize("name", STEPS)
def test_what_is_sent_is_what_was_measured(name: str) -> None:
    phases = {"fwd": "forward", "bwd": "backward", "recompute": "recompute"}
    measured, found = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for key, sent in STEPS[name]["traffic"].items():
        collective, phase, *_ = key.split("|")
        measured += {(collective, phases[phase], "calls"): sent["count"],
                     (collective, phases[phase], "bytes"): sent["payload_bytes"]}
    for t in _ran(STEPS[name]["case"]).traffic:
        found += {(t.collective, t.phase, "calls"): t.calls, (t.collective, t.phase, "bytes"): t.payload_bytes}
    assert found == measured
