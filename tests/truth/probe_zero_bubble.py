"""What PyTorch's zero-bubble schedules do on each rank, in order: their own functions over stages that do nothing.

    python probe_zero_bubble.py > schedules/zero-bubble-torch-2.13.0.json     (needs torch, no GPU)

A pass is F, B (the gradient of the input) or W (those of parameters), the rank's chunk, a dot, the microbatch. `group`:
microbatches of a round. One chunk a rank is ZB-H1.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining.schedules import (
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    _ComputationType,
)

LETTERS = {_ComputationType.FORWARD: "F", _ComputationType.BACKWARD_INPUT: "B", _ComputationType.BACKWARD_WEIGHT: "W"}
LOOPED = [(2, 1, 2), (2, 1, 5), (4, 1, 8), (4, 1, 3), (3, 1, 7), (2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 2, 9)]
"""Ranks, chunks, microbatches."""
THERE_AND_BACK = [(2, 2), (2, 8), (3, 4), (4, 7), (4, 12), (4, 1)]
"""Ranks, microbatches."""


def steps(schedule: Any, ranks: int, chunks: int, *, is_v: bool) -> list[str]:
    found = []
    for rank in range(ranks):
        own = [rank, 2 * ranks - 1 - rank] if is_v else list(range(rank, ranks * chunks, ranks))
        actions = [a for a in schedule._calculate_single_rank_operations(rank) if a is not None]
        found.append(" ".join(f"{LETTERS[a.computation_type]}{own.index(a.stage_index)}.{a.microbatch_index}"
                              for a in actions))
    return found


def looped(ranks: int, chunks: int, microbatches: int) -> dict[str, object]:
    schedule = ScheduleInterleavedZeroBubble.__new__(ScheduleInterleavedZeroBubble)
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:  # one chunk: rounds make no difference to the order
        assert chunks == 1
        rounds = 1
    vars(schedule).update(SimpleNamespace(
        pp_group_size=ranks, n_local_stages=chunks, number_of_rounds=rounds, _n_microbatches=microbatches,
        microbatches_per_round=microbatches // rounds).__dict__)
    return {"name": "zb_h1" if chunks == 1 else "interleaved_zb", "stages": ranks, "chunks": chunks,
            "microbatches": microbatches, "group": microbatches // rounds,
            "steps": steps(schedule, ranks, chunks, is_v=False)}


def there_and_back(ranks: int, microbatches: int) -> dict[str, object]:
    schedule = ScheduleZBVZeroBubble.__new__(ScheduleZBVZeroBubble)
    vars(schedule).update(pp_group_size=ranks, n_local_stages=2, num_stages=2 * ranks, _n_microbatches=microbatches)
    return {"name": "zbv", "stages": ranks, "chunks": 2, "microbatches": microbatches, "group": 1,
            "steps": steps(schedule, ranks, 2, is_v=True)}


if __name__ == "__main__":
    rows = [looped(*case) for case in LOOPED] + [there_and_back(*case) for case in THERE_AND_BACK]
    print("[" + ",\n ".join(json.dumps(row) for row in rows) + "]")
