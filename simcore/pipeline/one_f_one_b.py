"""1F1B: stage s of p runs p - s - 1 forward passes ahead, then one forward and one backward in turn.

Source: Megatron-Core 0.16.1 `pipeline_parallel/schedules.py` (forward_backward_pipelining_without_interleaving) and
torch 2.13 `distributed/pipelining/schedules.py` (Schedule1F1B); with one stage it is plain gradient accumulation.
"""

from __future__ import annotations

from simcore.pipeline.schedule import Action, Schedule

__all__ = ["order"]


def order(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Forward and backward passes that pipeline stage `stage` (0 is the first) runs in a step, in order."""
    ahead = min(schedule.num_stages - stage - 1, num_microbatches)
    last = num_microbatches - 1
    forward = [Action(forward=True, microbatch=i, is_last=i == last) for i in range(num_microbatches)]
    actions = forward[:ahead]
    for i in range(num_microbatches):
        actions += forward[i + ahead:i + ahead + 1]
        actions.append(Action(forward=False, microbatch=i, is_last=i == last))
    return tuple(actions)
