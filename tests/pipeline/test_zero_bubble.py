"""ZB-H1 and interleaved zero bubble against PyTorch's own function: the passes of every rank (see tests/truth)."""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.pipeline.schedule import Schedule, actions
from small import letters

ROWS = [row for row in truth_cases.rows("schedules/zero-bubble-torch-2.13.0.json") if row["name"] != "zbv"]
CASES = [pytest.param(row, stage, id=f"p{row['stages']}v{row['chunks']}m{row['microbatches']}s{stage}")
         for row in ROWS for stage in range(row["stages"])]


@pytest.mark.parametrize(("row", "stage"), CASES)
def test_a_rank_runs_the_passes_of_torch_s_own_function(row: dict[str, Any], stage: int) -> None:
    schedule = Schedule(row["name"], row["stages"], row["chunks"], row["group"])
    assert letters(actions(schedule, stage, row["microbatches"])) == row["steps"][stage].split()


@pytest.mark.parametrize("stage", range(4))
def test_as_many_microbatches_are_in_flight_as_there_are_stages(stage: int) -> None:
    """A microbatch is in flight until its weights have their gradients."""
    alive, most = 0, 0
    for action in actions(Schedule("zb_h1", 4), stage, 12):
        alive += 1 if action.forward else -1 if action.part == "weight" else 0
        most = max(most, alive)
    assert most == 4


def test_gradients_are_reduced_when_weights_have_theirs() -> None:
    assert [(a.part, a.microbatch) for a in actions(Schedule("zb_h1", 2), 1, 3) if a.is_last and not a.forward] == [
        ("weight", 2)]
