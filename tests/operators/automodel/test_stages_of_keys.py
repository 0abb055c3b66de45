"""Pipeline ranks whose layers of GLM-5.2 choose keys together, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-shared-0.7.0-torch-2.13.0.json"
STAGES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", STAGES["ranks"])
def test_stages_hold_what_automodel_s_do_of_chosen_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of a model whose layers choose together to one whose layers all choose, to Adam's counters.

    Its layers are dense, so that no experts are spread over ranks. Of a replayed part that ends with a layer that
    chooses, its own int64 indices are counted until its backward; Automodel has sent them on, in fp32, and let them go.
    """
    monkeypatch.setattr("simcore.frameworks.automodel.checks._check_sparse", lambda job: None)
    case = STAGES["ranks"][name]
    peaks = {kind: peak_of(case["case"], types) for kind, types in STAGES["types"].items()}
    measured = case["peaks"]
    in_flight = 2 * ("replayed" in case["case"] and "chunks" in case["case"])
    more = in_flight * 8 * STAGES["seq"] * STAGES["shape"]["index_topk"]
    assert peaks["shared"] - peaks["full"] == pytest.approx(measured["shared"] - measured["full"] + more, abs=128)


def peak_of(case: dict[str, Any], types: list[str]) -> int:
    shape = STAGES["shape"] | {"num_hidden_layers": len(types), "first_k_dense_replace": len(types),
                               "indexer_types": types}
    report = simulate(small.scenario(
        "automodel", {"pp": 2, "dp_shard": 1}, model={"config": "glm-5", "overrides": shape}, seq_len=STAGES["seq"],
        options={"attn": "sdpa"}, recompute="full" if case.get("replayed") else "none", global_batch_size=4,
        pipeline={"virtual_stages": case.get("chunks", 1)}, optimizer={"implementation": "fused"}, loss="masked_fp32",
        precision={"params": "bf16"}))
    assert report.status == "ok", report.problems
    peak = report.ranks[case["rank"]].peak
    assert peak is not None
    return int(peak.allocated_bytes)
