"""ZB-V: a rank holds one stage on the way down the model and one on the way back up, so ranks fill and drain at once.

Source: Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), section 6; torch 2.13
`distributed/pipelining/schedules.py`, ScheduleZBVZeroBubble._calculate_single_rank_operations. Rank r of p has stages r
and 2p - 1 - r. Filling the pipeline is the only bubble if a forward pass, the gradient of an input and that of
weights take the same time. The two chunks of the last rank are neighbours: nothing is sent between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.pipeline.schedule import Action, Part, Schedule

__all__ = ["order"]

Letter = tuple[str, int]
"""F, B (gradient of the input) or W (gradient of the weights), and the chunk; microbatches of each come in order."""

_PARTS: Final[dict[str, Part]] = {"F": "whole", "B": "input", "W": "weight"}


def order(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Forward, input-gradient and weight-gradient passes that a pipeline rank runs in a step, in order.

    `stage`: index of the rank. The order is written for at least 2 * num_stages - 1 microbatches; passes of
    microbatches that the step does not have are left out.
    """
    last, next_microbatch, actions = num_microbatches - 1, dict[Letter, int](), list[Action]()
    for letter, chunk in _letters(schedule.num_stages, stage, max(2 * schedule.num_stages - 1, num_microbatches)):
        microbatch = next_microbatch[letter, chunk] = next_microbatch.get((letter, chunk), -1) + 1
        if microbatch <= last:
            actions.append(Action(forward=letter == "F", microbatch=microbatch, chunk=chunk,
                              is_last=letter != "B" and microbatch == last,
                              part=_PARTS[letter]))
    return tuple(actions)


def _letters(num_stages: int, stage: int, count: int) -> Iterator[Letter]:
    """Warm-up, steady turns and cool-down of a rank."""
    behind = num_stages - stage
    yield from [("F", 0)] * (2 * behind - 1)
    yield from [("F", 1), ("F", 0)] * stage
    yield from [("F", 1), ("B", 1), ("W", 1)] * behind
    ahead = 2 * behind - 1 + stage  # forward passes through the first chunk until here; through the second: num_stages
    for turn in range(count - num_stages):
        yield from [("F", 0)] * (ahead + turn < count)
        yield from [("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1)]
    yield from [("B", 0), ("B", 1)] * stage
    yield from [("B", 0), ("W", 0)] * behind
    yield from [("W", 1)] * stage
    yield from [("W", 0)] * stage
