"""What PyTorch's interleaved 1F1B does on each rank, in order: its own function over stages that do nothing.

    python probe_looped.py > schedules/looped-torch-2.13.0.json     (needs torch, no GPU)

A pass is F or B, the rank's chunk, a dot, the microbatch. `group`: microbatches of a round.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, _ComputationType

CASES = [(2, 2, 2), (2, 2, 8), (2, 3, 6), (4, 2, 8), (4, 3, 12), (3, 2, 9), (4, 2, 6)]
"""Ranks, chunks, microbatches."""


def words(ranks: int, chunks: int, microbatches: int) -> dict[str, object]:
    schedule = ScheduleInterleaved1F1B.__new__(ScheduleInterleaved1F1B)
    rounds = max(1, microbatches // ranks)
    vars(schedule).update(SimpleNamespace(
        pp_group_size=ranks, n_local_stages=chunks, number_of_rounds=rounds, _n_microbatches=microbatches,
        microbatches_per_round=microbatches // rounds).__dict__)
    steps = []
    for rank in range(ranks):
        actions = [a for a in schedule._calculate_single_rank_operations(rank) if a is not None]
        steps.append(" ".join(f"{'F' if a.computation_type is _ComputationType.FORWARD else 'B'}"
                              f"{a.stage_index // ranks}.{a.microbatch_index}" for a in actions))
    return {"stages": ranks, "chunks": chunks, "microbatches": microbatches, "group": microbatches // rounds,
            "steps": steps}


if __name__ == "__main__":
    print("[" + ",\n ".join(json.dumps(words(*case)) for case in CASES) + "]")
