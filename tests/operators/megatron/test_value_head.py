"""A head of values in Megatron's layers: one row that tp does not split, no logits, and nothing of their size."""

from __future__ import annotations

import json
from typing import Any

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.simulate import simulate


def report(loss: str, **mesh: int) -> Report:
    given: dict[str, Any] = {
        "name": "v", "framework": "megatron", "topology": "dgx-h100", "mesh": mesh,
        "model": {"config": "qwen2.5-1.5b", "overrides": {"num_hidden_layers": 2}},
        "training": {"seq_len": 4096, "loss": loss}}
    return simulate(parse_scenario(parse_document(json.dumps(given), "v.json")), timed=False)


def test_the_head_has_one_row_on_every_rank_of_the_last_stage() -> None:
    """LinearForLastLayer, without a bias; the embedding's table is untied from it."""
    for mesh in ({"tp": 2}, {"tp": 2, "pp": 2}, {}):
        found = report("values", **mesh)
        assert found.status == "ok", found.problems
        head = found.ranks[-1].at_rest["lm_head"]
        assert head.num_params == 1536
        assert found.ranks[0].at_rest["embedding"].num_params == 151936 // mesh.get("tp", 1) * 1536


def test_no_tensor_has_the_vocabularys_size() -> None:
    values, logits = (report(loss).ranks[0].peak for loss in ("values", "auto"))
    assert values is not None
    assert logits is not None
    assert logits.allocated_bytes - values.allocated_bytes > 2 * 4096 * 151936
    assert values.by_category["activation"] < 2 * 4096 * 151936
