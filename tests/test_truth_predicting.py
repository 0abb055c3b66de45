"""Multi-token prediction over stages and with adapters, and GLM-4.5, under Megatron-Core (tests/truth/README.md)."""

from __future__ import annotations

from typing import Any

import pytest

import small
import truth_cases
from simcore.simulate import place
from test_truth_drawn import held

ROWS = [row for name in ("glm", "predicting")
        for row in truth_cases.rows(f"placement/{name}-megatron-core-0.16.1.json")]
HYBRID = {"num_hidden_layers": 4, "hybrid_override_pattern": "ME*E", "mtp_num_layers": 2,
          "mtp_hybrid_override_pattern": "*E"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
def test_modules_are_placed_as_the_real_framework_places_them(row: dict[str, Any]) -> None:
    """The last stage has one copy of the embedding's table, first in its buffers; linears of a module get adapters."""
    report = place(truth_cases.megatron(row["case"]), rank=row["rank"])
    assert report.status == "ok", report.problems
    found = held(report.ranks[0], "megatron")
    assert found == {key: row[key] for key in found}


@pytest.mark.parametrize(("repeated", "count"), [(True, 2_365_440), (False, 3_351_808)])
def test_a_hybrids_last_stage_has_one_table(repeated: bool, count: int) -> None:
    """`HybridModel` of Megatron-LM d98e8a64, pattern ME*E/*E/*E, second of two stages: elements by named_parameters."""
    model = {"config": "nemotron-3-tiny", "overrides": {**HYBRID, "mtp_use_repeated_layer": repeated}}
    (rank,) = place(small.scenario("megatron", {"pp": 2}, model=model, version="main 2026-08-22", microbatches=2),
                    rank=1).ranks
    assert sum(part.num_params for part in rank.at_rest.values()) == count
    assert rank.at_rest["embedding"].num_params == 1024 * 256
