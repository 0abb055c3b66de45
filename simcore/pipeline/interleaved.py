"""Interleaved 1F1B: every rank holds several chunks of the model, and microbatches go round the ranks once a chunk.

Source: Megatron-Core 0.16.1 `pipeline_parallel/schedules.py`, forward_backward_pipelining_with_interleaving (line 828).

[Note: interleaved 1F1B]
Passes are numbered: `group` microbatches through chunk 0, the same through chunk 1, ..., then the next group
(get_schedule_table, :798); backward takes the chunks in reverse. Stage s of p with v chunks runs
2 (p - s - 1) + (v - 1) group forward passes ahead (:773). Under `overlap_p2p_comm`, which Bridge 0.3.1
(`training/comm_overlap.py:453`) and Megatron-LM set with virtual stages, the input of a rank's next forward pass is
received while a backward pass runs, and the other way round (:1575-1725). The first stage, in forward, is p - 1 passes
ahead of the last, which feeds it; so it receives what the last one makes p - 1 passes later, and with groups of more
than p microbatches that waits in a buffer (recv_tensor_from_previous_stage, :1120). The last stage does the same in
backward. A tensor that was sent is freed before the next forward pass, hence after a backward pass, except in warm-up
(:1522, :1600). Gradients of a chunk are reduced when all stages are done with it, so that ranks do not disturb each
other: stage s waits s passes (`grad_sync_func`, :1280; Bridge `training/config.py:133` align_grad_reduce).

[Note: combined 1F1B]
Under `overlap_moe_expert_parallel_comm` a forward and a backward pass run layer by layer in turn, so that the exchange
of tokens of one overlaps with the other's GEMMs (`combined_1f1b.py`, `models/common/model_chunk_schedule_plan.py`).
They must not depend on each other, hence one more forward pass ahead (:778): F F (F B) (F B) B where there was F (F B)
(F B) (F B). One after the other, with the backward pass first, that is the order of passes without it, and so it is
simulated. Assumed: a layer of the backward pass frees as much as a layer of the forward pass allocates. Upstream begins
a pair with the forward pass's attention, so at a time it has at most the attention of one layer more. With one stage
the order is plain gradient accumulation in the same way (`combined_1f1b.py:44`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.pipeline.schedule import Action, Pass, Schedule

__all__ = ["order", "passes"]


def order(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Forward and backward passes that pipeline stage `stage` (0 is the first) runs in a step, in order.

    Each pass takes one microbatch through one of the rank's chunks (parts of the model), see [Note: interleaved 1F1B].
    """
    forward, backward = (passes(schedule, num_microbatches, forward=way) for way in (True, False))
    total = len(forward)
    ahead = min(2 * (schedule.num_stages - stage - 1) + (schedule.num_chunks - 1) * schedule.group, total)
    forward_actions = [_forward(schedule, stage, num_microbatches, k, forward, ahead) for k in range(total)]
    actions = forward_actions[:ahead]
    for k in range(total):
        actions += forward_actions[k + ahead:k + ahead + 1]
        actions.append(_backward(schedule, stage, num_microbatches, k, backward))
    return tuple(actions)


def passes(schedule: Schedule, num_microbatches: int, *, forward: bool) -> list[Pass]:
    """All (True for forward, chunk of the rank, microbatch) of one direction in a step, in order; equal on every stage.

    `forward` True: forward passes, chunks in rising order; False: backward passes, chunks in falling order.
    """
    chunks = range(schedule.num_chunks) if forward else range(schedule.num_chunks - 1, -1, -1)
    starts = range(0, num_microbatches, schedule.group)
    return [(forward, chunk, microbatch) for start in starts for chunk in chunks
            for microbatch in range(start, min(start + schedule.group, num_microbatches))]


def _received_after(schedule: Schedule, passes: Sequence[Pass], k: int, *, is_leading: bool) -> tuple[Pass, ...]:
    """Passes whose input begins to arrive after pass `k`; the leading stage is the first in forward, else the last."""
    if not is_leading:
        return tuple(passes[k + 1:k + 2])
    at = k - (schedule.num_stages - 1)
    if at < 0:
        return ()
    forward, chunk, microbatch = passes[at]
    following = chunk + 1 if forward else chunk - 1
    return ((forward, following, microbatch),) if 0 <= following < schedule.num_chunks else ()


def _forward(schedule: Schedule, stage: int, num_microbatches: int, k: int, passes: Sequence[Pass],
             ahead: int) -> Action:
    _, chunk, microbatch = passes[k]
    is_last_stage = stage == schedule.num_stages - 1
    received = _received_after(schedule, passes, k, is_leading=stage == 0)
    if k == ahead - 1 and ahead < len(passes) and not is_last_stage:  # the first gradient, before the first 1F1B
        received += ((False, schedule.num_chunks - 1, 0),)
    sends = not (is_last_stage and chunk == schedule.num_chunks - 1)
    return Action(forward=True, microbatch=microbatch, is_last=microbatch == num_microbatches - 1, chunk=chunk,
                  ahead=received, keeps_output=sends and k >= ahead)


def _backward(schedule: Schedule, stage: int, num_microbatches: int, k: int, passes: Sequence[Pass]) -> Action:
    _, chunk, microbatch = passes[k]
    last = num_microbatches - 1
    received = _received_after(schedule, passes, k, is_leading=stage == schedule.num_stages - 1)
    done = range(k - stage, k - stage + 1) if k < len(passes) - 1 else range(k - stage, k + 1)
    reduces = tuple(passes[i][1] for i in done if i >= 0 and passes[i][2] == last)
    return Action(forward=False, microbatch=microbatch, is_last=microbatch == last, chunk=chunk, ahead=received,
                  reduces=reduces)
