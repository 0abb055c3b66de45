"""Steps with norms and tables in fp32, as axolotl trains in full without flash-attn (`probe_axolotl_wide.py`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.operators.hf import liger as hf_liger
from simcore.results.report import Report
from simcore.simulate import simulate

STORED: dict[str, Any] = json.loads((ROOT / "tests/truth/liger/axolotl-wide.json").read_text(encoding="utf-8"))["cases"]
WIDENS = "convert_embedding_modules_dtype"


@pytest.fixture(autouse=True)
def _one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU that was asked counts as one."""
    monkeypatch.setattr(hf_liger, "_NUM_SMS", 1)


def stepped(case: dict[str, Any]) -> Report:
    rope, rms_norm, gated, loss = case["kernels"]
    options: dict[str, Any] = {WIDENS: True, "liger_rope": rope, "liger_rms_norm": rms_norm,
                               "liger_glu_activation": gated}
    if any((rope, rms_norm, gated)):
        options["liger_in_classes"] = True
    if case["preset"].startswith("gemma-2"):
        options["attn_implementation"] = "eager"
    return simulate(small.scenario(
        "ddp", model={"config": case["preset"], "overrides": case["shape"]}, options=options, seq_len=case["tokens"],
        optimizer={"implementation": "fused"}, recompute="full" if case["recompute"] else "none",
        loss="liger" if loss else "hf"))


@pytest.mark.parametrize("number", STORED)
def test_a_step_allocates_what_axolotls_model_allocates(number: str) -> None:
    """At rest, at the peaks of forward and of the step, and when it is over."""
    case = STORED[number]
    report = stepped(case)
    if report.status != "ok":
        assert "not yet" in report.problems[0].message
        return
    assert small.allocated(report) == {name: value for name, value in case["found"].items() if name != "wide"}
