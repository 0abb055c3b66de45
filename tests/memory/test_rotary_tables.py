"""Tables and cached angles of Megatron-Core's rotary embeddings: `tests/truth/draw_rotary_tables.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import truth_cases
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.frameworks.setup import prepare
from simcore.memory.workspace import WorkspaceInputs, spaces
from simcore.placement.plan import place

ROWS: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests/truth/placement/rotary-tables-core-0.16.1.json").read_text(encoding="utf-8"))
REFUSED = {"r14": "the model has no experts", "r22": "attention sinks under context parallelism",
           "r39": "attention sinks under context parallelism"}
"""Layouts that are built, but whose forward pass raises."""
EXACT = [name for name, row in ROWS.items() if "error" not in row and name not in REFUSED]
SEQ = 512


def held(case: dict[str, Any]) -> dict[str, int]:
    """Bytes of tables and angles on the case's rank."""
    job, framework = prepare(truth_cases.megatron(case))
    plan = place(job.graph, job.mesh, framework, case["rank"])
    found = {space.name: space.num_bytes for space in spaces(plan, WorkspaceInputs(9, None, 1, SEQ // job.mesh.cp))}
    return {"tables": found.get("rope_tables", 0), "angles": found.get("rope_cache", 0)}


@pytest.mark.parametrize("name", EXACT)
def test_tables_and_angles_of_a_rank(name: str) -> None:
    row = ROWS[name]
    assert held(row["case"]) == {"tables": row["tables"], "angles": row["angles"]}


@pytest.mark.parametrize("name", REFUSED)
def test_what_raises_later_is_refused(name: str) -> None:
    with pytest.raises(IllegalLayout, match=REFUSED[name]):
        held(ROWS[name]["case"])


def test_most_layouts_were_built() -> None:
    assert (len(ROWS), len(EXACT)) == (60, 43)
