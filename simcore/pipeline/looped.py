"""PyTorch's interleaved 1F1B: the passes of Megatron's, in groups of one round's microbatches.

Source: torch 2.13 `distributed/pipelining/schedules.py` (ScheduleInterleaved1F1B): `microbatches_per_round`, and
warm-up of (v - 1) rounds and two passes for each stage behind (_get_warmup_ops). Received tensors lie in buffers
that are never freed, so it does not matter when they begin to arrive: here when their pass begins. Gradients of a
chunk are reduced when its last backward pass is over (REDUCE_GRAD).
"""

from __future__ import annotations

from dataclasses import replace

from simcore.pipeline import interleaved
from simcore.pipeline.schedule import Action, Schedule

__all__ = ["order"]


def order(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Forward and backward passes that pipeline stage `stage` (0 is the first) runs in a step, in order.

    Order and chunks are those of `interleaved.order`, without receiving ahead and without kept outputs.
    """
    return tuple(replace(action, ahead=(), keeps_output=False, reduces=())
                 for action in interleaved.order(schedule, stage, num_microbatches))
