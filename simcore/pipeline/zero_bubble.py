"""Zero bubble with as little memory as 1F1B: backward in two parts, and the weights' part fills the bubble of 1F1B.

Source: Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), 2.3: ZB-H1; torch 2.13
`distributed/pipelining/schedules.py`, ScheduleInterleavedZeroBubble, which is ZB-H1 where a rank has one stage.

[Note: zero bubble]
The previous stage waits only for the gradient of a stage's input. Stage s of p runs p - s - 1 forward passes
ahead (and `group` more for each further chunk), half of what interleaved 1F1B does: a pass back takes about as long as
one forward when weights wait. Then F, B and W take turns; W of a microbatch comes s passes back after its B, so that
every stage has p microbatches in flight. With times F, B and W of the three, ZB-H1 has a bubble of (p - 1)(F + B - W),
1F1B one of (p - 1)(F + B + W). The first stage has no input to give a gradient to: torch runs its whole backward pass
where W stands (`stage.py`, backward_one_chunk).
"""

from __future__ import annotations

from simcore.pipeline.interleaved import passes
from simcore.pipeline.schedule import Action, Schedule

__all__ = ["order"]


def order(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Forward, input-gradient and weight-gradient passes that stage `stage` runs in a step, in order.

    See [Note: zero bubble]; stages and microbatches are counted from 0.
    """
    last = num_microbatches - 1
    forward, backward = (passes(schedule, num_microbatches, forward=way) for way in (True, False))
    total = len(forward)
    ahead = min(schedule.num_stages - stage - 1 + (schedule.num_chunks - 1) * schedule.group, total)
    forward_actions = [Action(forward=True, microbatch=m, is_last=m == last, chunk=chunk) for _, chunk, m in forward]
    input_actions = [Action(forward=False, microbatch=m, chunk=chunk, part="input") for _, chunk, m in backward]
    weight_actions = [Action(forward=False, microbatch=m, is_last=m == last, chunk=chunk, part="weight")
               for _, chunk, m in backward]
    actions = forward_actions[:ahead]
    for k in range(total):
        actions += [*forward_actions[k + ahead:k + ahead + 1], input_actions[k],
                    *weight_actions[max(k - stage, 0):max(k - stage + 1, 0)]]
    return (*actions, *weight_actions[max(total - stage, 0):])
