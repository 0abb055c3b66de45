"""ZB-V against PyTorch's own function: the passes of every rank (see tests/truth)."""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.pipeline.schedule import Schedule, actions
from small import letters

ROWS = [row for row in truth_cases.rows("schedules/zero-bubble-torch-2.13.0.json") if row["name"] == "zbv"]
CASES = [pytest.param(row, stage, id=f"p{row['stages']}m{row['microbatches']}s{stage}")
         for row in ROWS for stage in range(row["stages"])]


@pytest.mark.parametrize(("row", "stage"), CASES)
def test_a_rank_runs_the_passes_of_torch_s_own_function(row: dict[str, Any], stage: int) -> None:
    found = actions(Schedule("zbv", row["stages"], 2), stage, row["microbatches"])
    assert letters(found) == row["steps"][stage].split()
    assert [(a.part, a.chunk) for a in found if a.is_last and not a.forward].count(("weight", 0)) == 1
