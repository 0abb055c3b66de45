"""The order of passes on a pipeline stage; each schedule is a module of `simcore/pipeline`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal

__all__ = ["SCHEDULES", "ZERO_BUBBLE", "Action", "Part", "Pass", "Schedule", "actions", "lowered_microbatches",
           "steady_microbatches"]

Pass = tuple[bool, int, int]
"""(True for forward or False for backward, chunk, microbatch)."""

Part = Literal["whole", "input", "weight"]
"""Part of a pass: all of it or, in a backward pass, the gradient of the chunk's input or those of its parameters."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Order of the passes of a pipeline. A rank holds `num_chunks` parts of the model.

    `group`: number of microbatches that a chunk takes in a row before the rank's next chunk does; the order of a step
    repeats from group to group.
    """

    name: str = "1f1b"
    num_stages: int = 1
    num_chunks: int = 1
    group: int = 1

    @property
    def splits_backward(self) -> bool:
        """True if gradients of inputs and gradients of parameters are made in separate passes."""
        return self.name in ZERO_BUBBLE

    def parts_of(self, rank: int) -> tuple[int, ...]:
        """Indices of the model's parts (chunks) of a rank: round robin, or under zbv down the model and back up."""
        if self.name == "zbv":
            return rank, 2 * self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages * self.num_chunks, self.num_stages))


@dataclass(frozen=True, slots=True)
class Action:
    """One pass: forward or backward of a microbatch through a chunk; `is_last`: the chunk's last one of the step.

    `ahead`: passes whose input the rank begins to receive when this one is over (others: when they begin).
    `keeps_output`: the sent tensor is freed when the backward pass after it is over, not at once. `reduces`: chunks
    whose gradients are reduced when it is over. `part`: the part of a split backward pass; the gradient from another
    rank arrives for its first part.
    """

    forward: bool
    microbatch: int
    is_last: bool = False
    chunk: int = 0
    ahead: tuple[Pass, ...] = ()
    keeps_output: bool = False
    reduces: tuple[int, ...] = ()
    part: Part = "whole"

    @property
    def key(self) -> Pass:
        """The pass itself: (forward, chunk, microbatch)."""
        return self.forward, self.chunk, self.microbatch


def actions(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Passes of one stage, in order."""
    module = importlib.import_module(f"simcore.pipeline.{_MODULE[schedule.name]}")
    order: tuple[Action, ...] = module.order(schedule, stage, num_microbatches)
    return order


ZERO_BUBBLE = ("zb_h1", "interleaved_zb", "zbv")
"""Schedules whose backward passes are split."""

SCHEDULES = ("1f1b", "gpipe", *ZERO_BUBBLE)
"""Schedules that a scenario may ask for; with virtual stages 1f1b is interleaved."""

_MODULE = {"1f1b": "one_f_one_b", "gpipe": "gpipe", "interleaved": "interleaved", "looped": "looped",
           "zb_h1": "zero_bubble", "interleaved_zb": "zero_bubble", "zbv": "zbv"}

WRITTEN_OUT = ("gpipe",)
"""Those of which no microbatch stands for others: all of a step are in flight at once."""


def lowered_microbatches(schedule: Schedule, num_microbatches: int, doublings: int = 0) -> int:
    """Number of microbatches that are simulated first: the first, a steady one, the last, more to fill a pipeline.

    Full groups, and the remainder of the step's last group. Warm-up and cool-down of an interleaved stage take less
    than two groups each; under zbv twice as long as with one chunk. If the steady microbatches do not take the same
    time, twice as many are simulated (`doublings`).
    """
    if schedule.name in WRITTEN_OUT:
        return num_microbatches
    p, chunks = schedule.num_stages, schedule.num_chunks
    groups = 3 if p == 1 else 4 * p + 2 if schedule.name == "zbv" else 2 * p + 2 if chunks == 1 else 5
    return min(num_microbatches, (groups << doublings) * schedule.group + num_microbatches % schedule.group)


def steady_microbatches(schedule: Schedule, num_lowered: int) -> range:
    """Group of simulated microbatches that stands for the omitted ones: on no stage in warm-up or cool-down."""
    first = num_lowered // schedule.group // 2 * schedule.group
    return range(first, first + schedule.group)
