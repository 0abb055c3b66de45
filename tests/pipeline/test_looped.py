"""PyTorch's interleaved 1F1B against its own function: the passes of every rank (see tests/truth)."""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.pipeline.schedule import Schedule, actions

ROWS = truth_cases.rows("schedules/looped-torch-2.13.0.json")
CASES = [pytest.param(row, stage, id=f"p{row['stages']}v{row['chunks']}m{row['microbatches']}s{stage}")
         for row in ROWS for stage in range(row["stages"])]


@pytest.mark.parametrize(("row", "stage"), CASES)
def test_a_rank_runs_the_passes_of_torch_s_own_function(row: dict[str, Any], stage: int) -> None:
    schedule = Schedule("looped", row["stages"], row["chunks"], row["group"])
    found = actions(schedule, stage, row["microbatches"])
    assert [f"{'F' if a.forward else 'B'}{a.chunk}.{a.microbatch}" for a in found] == row["steps"][stage].split()
    assert not any(a.ahead or a.keeps_output for a in found)
