"""Pipeline ranks of Automodel with a vision tower: contents of a step's peak, and traffic, as measured.

See tests/truth/tape/README.md.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.scenario import Scenario
from simcore.results.report import RankReport
from simcore.simulate import simulate
from test_truth_automodel_stages import ELSEWHERE, PASSES
from truth_cases import joined

TAPE = ROOT / "tests/truth/tape"
STAGES: dict[str, Any] = json.loads((TAPE / "automodel-stages-vision-0.7.0-torch-2.13.0.json").read_text(
    encoding="utf-8"))
SIDES = {one["name"]: one["sides"] for one in json.loads((TAPE / "cases-vision.json").read_text(encoding="utf-8"))
         if "sides" in one}
WORLD, SEQ = 8, 512
BEHIND_FEATURES = ("first of qwen3-vl-moe, interleaved",)
"""Cases whose peak is in the backward of such features, with chunks of one layer."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of configurations, one a case."""
    return tmp_path_factory.mktemp("stages")


@cache
def ran(name: str, config: Path) -> RankReport:
    case, path = STAGES[name]["case"], config / f"{name}.json"
    path.write_text(json.dumps(case["fields"]), encoding="utf-8")
    pp, (height, width) = case["pp"], SIDES[case["model"]]
    report = simulate(Scenario.model_validate({
        "name": "stage", "model": {"config": str(path)}, "framework": "automodel", "topology": "dgx-h100",
        "mesh": {"pp": pp, "dp_shard": WORLD // pp, "ep": 4}, "framework_options": {"attn": "sdpa"}, "training": {
            "seq_len": SEQ, "images": 1, "image_height": height, "image_width": width, "frozen": ["model.visual"],
            "recompute": "full" if case.get("checkpoint") else "none",
            "pipeline": {"virtual_stages": case.get("chunks", 1)},
            "global_batch_size": case["microbatches"] * WORLD // pp, "optimizer": {"implementation": "fused"}}}))
    assert report.status == "ok", report.problems
    return next(rank for rank in report.ranks if rank.stage == case["rank"] // (WORLD // pp))


@pytest.mark.parametrize("name", STAGES)
def test_what_is_there_at_the_peak(name: str, config: Path) -> None:
    """A gradient that came in is counted as free once used, before features are taken out of the first chunk's."""
    case, peak = STAGES[name]["case"], ran(name, config).peak
    theirs = joined(STAGES[name]["breakdown"], PASSES, ELSEWHERE)
    assert peak is not None
    theirs["passes"] -= 4 * (case["microbatches"] - 1) * (case["rank"] > 0)  # losses of the other microbatches
    theirs["passes"] -= 2 * SEQ * case["fields"]["text_config"]["hidden_size"] * (name in BEHIND_FEATURES)
    assert joined(peak.by_category, PASSES, ELSEWHERE) == theirs


@pytest.mark.parametrize("name", STAGES)
def test_what_is_sent_to_shards(name: str, config: Path) -> None:
    measured, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for key, sent in STAGES[name]["traffic"].items():
        collective, phase, *_ = key.split("|")
        measured[collective, {"fwd": "forward", "bwd": "backward"}[phase]] += sent["payload_bytes"]
    for traffic in ran(name, config).traffic:
        if traffic.axis != "pp":
            found[traffic.collective, traffic.phase] += traffic.payload_bytes
    assert found == measured
