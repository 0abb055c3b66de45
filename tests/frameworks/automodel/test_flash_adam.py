"""FlashOptim's Adam under Automodel: states as its code makes them, what is refused, and recipes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from automodel_recipe import changed, imported, refusal
from checkout import ROOT
from simcore.results.report import Report
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth/optimizers/flashoptim-8b2d966e.json"
BYTES = {"int8": 1, "uint8": 1, "int16": 2, "float16": 2}


def _ran(options: dict[str, Any] | None = None, *, stored: str = "bf16", mesh: dict[str, int] | None = None,
         **optimizer: Any) -> Report:
    return simulate(small.scenario("automodel", mesh or {}, model="llama-tiny", precision={"params": stored},
                                   options=options or {}, optimizer={"implementation": "flashoptim", **optimizer}))


def test_each_parameter_has_the_states_that_the_real_class_makes() -> None:
    """Bytes of 32 elements: all tensors of the model, and of a rank's part of it, are whole groups of 32."""
    whole = sum(part.num_params for part in _ran().ranks[0].at_rest.values())
    for name, row in json.loads(TRUTH.read_text(encoding="utf-8"))["cases"].items():
        group = sum(BYTES[dtype] * numel for dtype, numel in row["states"][0].values()) // 3
        bits = row["arguments"].get("master_weight_bits", 24)
        for mesh in ({}, {"dp_shard": 2}):
            report = _ran({"master_weight_bits": bits or 16}, mesh=mesh,
                          stored={"bfloat16": "bf16", "float32": "fp32"}[row["dtype"]])
            assert report.status == "ok", report.problems
            held = sum(part.optimizer_bytes for part in report.ranks[0].at_rest.values())
            assert held == group * whole // 32 // mesh.get("dp_shard", 1), (name, mesh)


def test_what_is_refused() -> None:
    cases: tuple[tuple[dict[str, Any] | None, dict[str, Any], str], ...] = (
            (None, {"stored": "fp32"}, "master_weight_bits=24 has no effect when all parameters are fp32"),
            (None, {"name": "sgd"}, "not yet: sgd of flashoptim under automodel"),
            (None, {"moments": "bf16"}, "not yet: bf16 under automodel"),
            ({"master_weight_bits": 24}, {"implementation": "fused"}, "changes nothing but in FlashOptim's Adam"),
            ({"store_param_remainders": True}, {}, "changes nothing but in TE's FusedAdam"),
            (None, {"master": "fp32"}, "not yet: fp32 under automodel"))
    for options, given, told in cases:
        report = _ran(options, **given)
        assert report.status != "ok", told
        assert told in report.problems[0].message
    fsdp2 = simulate(small.scenario("fsdp2", {"dp_shard": 2}, optimizer={"implementation": "flashoptim"}))
    assert "not yet: flashoptim under fsdp2" in fsdp2.problems[0].message


def test_recipes_name_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = changed("torch.optim.AdamW, lr: 2e-5, foreach: false", "flashoptim.FlashAdamW, master_weight_bits: 24")
    found = imported(text)
    found.expect_complete()
    assert found.values["training"]["optimizer"] == {"name": "adamw", "implementation": "flashoptim"}
    assert found.values["framework_options"]["master_weight_bits"] == 24
    assert "must be one of (None, 24, 32)" in refusal(text.replace("bits: 24", "bits: 20"))
    assert "not in 8 bits" in refusal(text.replace("bits: 24", "bits: 24, quantize: false"))
