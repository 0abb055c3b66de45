"""GPipe: all forward passes, then all backward passes, in the same order.

Source: torch 2.13 `distributed/pipelining/schedules.py` (ScheduleGPipe._step_microbatches). All microbatches of a step
are in flight at once, so no microbatch can stand for others: all are simulated.
"""

from __future__ import annotations

from simcore.pipeline.schedule import Action, Schedule

__all__ = ["order"]


def order(_schedule: Schedule, _stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """All forward passes of the step, then all backward passes, by rising microbatch; equal on all stages."""
    last = num_microbatches - 1
    return tuple(Action(forward=forward, microbatch=i, is_last=i == last)
                 for forward in (True, False) for i in range(num_microbatches))
