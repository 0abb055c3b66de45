"""Interleaved 1F1B against Megatron-Core's own function: passes, receives, frees, reductions (see tests/truth)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

import truth_cases
from simcore.pipeline.schedule import Action, Pass, Schedule, actions

ROWS = truth_cases.rows("schedules/interleaved-core-0.16.1.json")
CASES = [pytest.param(row, stage, id=f"p{row['stages']}v{row['chunks']}m{row['microbatches']}n{row['group']}s{stage}")
         for row in ROWS for stage in range(row["stages"])]


def _words(schedule: Schedule, stage: int, count: int) -> list[str]:
    """The passes of a stage in the words of the truth."""
    words: list[str] = []
    received: set[Pass] = set()
    kept = ""
    for action in actions(schedule, stage, count):
        name = f"{action.chunk}.{action.microbatch}"
        if action.key not in received and not _is_end(schedule, stage, action, leading=True):
            words.append(_receive(action.key))
        words.append(f"{'F' if action.forward else 'B'}{name}")
        if action.forward and not _is_end(schedule, stage, action, leading=False):
            kept = f"-{name}"
        words += [f"R{chunk}" for chunk in action.reduces] + [_receive(key) for key in action.ahead]
        received.update(action.ahead)
        if kept and not action.keeps_output:
            words.append(kept)
            kept = ""
    return words


def _is_end(schedule: Schedule, stage: int, action: Action, *, leading: bool) -> bool:
    """The pass receives nothing (leading), or sends nothing."""
    at = action.chunk * schedule.num_stages + stage
    return at == (0 if leading == action.forward else schedule.num_stages * schedule.num_chunks - 1)


def _receive(key: Pass) -> str:
    forward, chunk, microbatch = key
    return f"<{'F' if forward else 'B'}{chunk}.{microbatch}"


def _between_passes(words: list[str]) -> list[list[str]]:
    """Passes one by one, and what lies between two of them in order of letters."""
    return [sorted(group) for _, group in groupby(words, lambda word: word if word[0] in "FB" else "")]


@pytest.mark.parametrize(("row", "stage"), CASES)
def test_a_stage_does_what_cores_own_function_does(row: dict[str, Any], stage: int) -> None:
    schedule = Schedule("interleaved", row["stages"], row["chunks"], row["group"])
    lines = _words(schedule, stage, row["microbatches"])
    assert _between_passes(lines) == _between_passes(row["steps"][stage].split())


def test_the_truth_has_groups_of_several_sizes_and_steps_of_warm_up_alone() -> None:
    assert {row["group"] > row["stages"] for row in ROWS} == {True, False}
    assert any(row["group"] == row["microbatches"] for row in ROWS)
    assert any(row["microbatches"] % row["group"] for row in ROWS)
