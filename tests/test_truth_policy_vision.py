"""Whole steps of Qwen 2.5 VL as NeMo RL's workers of DTensor wrap it: `tests/truth/probe_policy_vision.py`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from checkout import ROOT
from simcore.frameworks.automodel.policies import NEMO_RL
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.simulate import check, simulate

TAPE = ROOT / "tests/truth/tape"
STEPS: dict[str, Any] = json.loads((TAPE / "policy-vision-torch-2.13.0.json").read_text(encoding="utf-8"))
MODELS: dict[str, Any] = {one["name"]: one for one in json.loads(
    (TAPE / "cases-vision.json").read_text(encoding="utf-8"))}
SEQ, STEP_COUNTS = 512, 224
"""Tokens, and Adam's counts of steps in 4 bytes a parameter, which are left out."""


def asked(case: dict[str, Any], folder: Path, **training: Any) -> Scenario:
    model, path = MODELS[case["model"]], folder / "config.json"
    path.write_text(json.dumps(model["fields"]), encoding="utf-8")
    height, width = case.get("sides", model["sides"])
    return Scenario.model_validate({
        "name": "sees", "model": {"config": str(path)}, "framework": "automodel", "framework_version": NEMO_RL,
        "implementation": "hf", "topology": "dgx-h100", "mesh": {"dp_shard": 8},
        "framework_options": {"attn_implementation": "sdpa", "use_liger_kernel": False},
        "training": {"seq_len": SEQ, "images": case["images"], "image_height": height, "image_width": width,
                     "loss": "masked_fp32", "optimizer": {"implementation": "fused"}} | training})


def test_steps_are_as_measured(tmp_path: Path) -> None:
    """Units, peaks and traffic, to the byte."""
    for name, row in STEPS.items():
        job, table = prepare(asked(row["case"], tmp_path))
        graph = job.graph
        units = [["" if unit.is_root else unit.name, sum(
            graph.tensors[graph.layers[layer].kind][number].numel for layer, numbers in unit.members
            for number in numbers)] for unit in table.units]
        assert sorted(units) == sorted(row["units"]), name
        report = simulate(asked(row["case"], tmp_path))
        assert report.status == "ok", report.problems
        rank = report.ranks[0]
        assert rank.peak is not None
        phases = rank.peak.by_phase
        assert phases["forward"] == row["forward"]["peak"] - STEP_COUNTS, name
        assert phases["backward"] == row["backward"]["peak"] - STEP_COUNTS, name
        sent = Counter[tuple[str, str]]()
        for one in rank.traffic:
            sent[one.collective, one.phase] += one.payload_bytes
        told = {key.split("|")[0]: key.split("|")[1] for key in row["traffic"]}
        assert set(told) == {"all_gather", "reduce_scatter"}
        assert sent == {(key.split("|")[0], {"fwd": "forward", "bwd": "backward"}[key.split("|")[1]]):
                        one["payload_bytes"] for key, one in row["traffic"].items()}, name


def test_what_was_not_measured_is_refused(tmp_path: Path) -> None:
    case = next(iter(STEPS.values()))["case"]
    on_host = dict.fromkeys(("params", "gradients", "optimizer"), "host")
    for changed in ({"recompute": "full"}, {"frozen": ["model.visual"]}, {"offload": on_host}):
        problems = [one.message for one in check(asked(case, tmp_path, **changed)).problems]
        assert any("not yet" in one for one in problems), changed
