"""The order of passes on a pipeline stage; each schedule is a file of `simcore/schedules`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal

__all__ = ["SCHEDULES", "ZERO_BUBBLE", "Action", "Part", "Pass", "Schedule", "actions", "lowered_microbatches",
           "steady_microbatches"]

Pass = tuple[bool, int, int]
"""Forward (or backward), chunk, microbatch."""

Part = Literal["whole", "input", "weight"]
"""Of a pass: all of it, or of a backward pass the gradient of the chunk's input, or those of its parameters."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How passes are ordered. A rank holds `num_chunks` parts of the model.

    `group`: microbatches that a chunk takes in a row before the rank's next chunk has its turn; a step repeats itself
    group by group.
    """

    name: str = "1f1b"
    num_stages: int = 1
    num_chunks: int = 1
    group: int = 1

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and those of parameters are made in passes of their own."""
        return self.name in ZERO_BUBBLE

    def parts_of(self, rank: int) -> tuple[int, ...]:
        """The numbers of the parts of the model that a rank holds, its chunks: in turn, or down the model and up."""
        if self.name == "zbv":
            return rank, 2 * self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages * self.num_chunks, self.num_stages))


@dataclass(frozen=True, slots=True)
class Action:
    """One entry: forward or backward of a microbatch through a chunk; `is_last`: of the step, through this chunk.

    `ahead`: passes whose input the rank begins to receive when this one is over (others: when they begin).
    `keeps_output`: what it sends is freed when the backward pass after it is over, not at once. `reduces`: chunks whose
    gradients are reduced when it is over. `part`: of a backward pass that is split; what comes from another rank comes
    for its first half.
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
        """The pass itself."""
        return self.forward, self.chunk, self.microbatch


def actions(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """The passes of one stage."""
    module = importlib.import_module(f"simcore.pipeline.{_MODULE[schedule.name]}")
    order: tuple[Action, ...] = module.order(schedule, stage, num_microbatches)
    return order


ZERO_BUBBLE = ("zb_h1", "interleaved_zb", "zbv")
"""Those whose backward passes are split."""

SCHEDULES = ("1f1b", "gpipe", *ZERO_BUBBLE)
"""What a scenario may ask for; virtual stages make 1f1b interleaved."""

_MODULE = {"1f1b": "one_f_one_b", "gpipe": "gpipe", "interleaved": "interleaved", "looped": "looped",
           "zb_h1": "zero_bubble", "interleaved_zb": "zero_bubble", "zbv": "zbv"}

WRITTEN_OUT = ("gpipe",)
"""Those of which no microbatch stands for others: all of a step are in flight at once."""


def lowered_microbatches(schedule: Schedule, num_microbatches: int, doublings: int = 0) -> int:
    """How many microbatches are written out at first: the first, a steady one, the last; more to fill a pipeline.

    Whole groups, and what is left over of the step's last one. An interleaved stage is in warm-up for less than two
    groups, and in cool-down; under zbv for twice as long as with one chunk. If the steady ones do not take the same
    time, twice as many are written out.
    """
    if schedule.name in WRITTEN_OUT:
        return num_microbatches
    p, chunks = schedule.num_stages, schedule.num_chunks
    groups = 3 if p == 1 else 4 * p + 2 if schedule.name == "zbv" else 2 * p + 2 if chunks == 1 else 5
    return min(num_microbatches, (groups << doublings) * schedule.group + num_microbatches % schedule.group)


def steady_microbatches(schedule: Schedule, num_lowered: int) -> range:
    """Of those written out, the group that stands for all that are not: on no stage in warm-up or cool-down."""
    first = num_lowered // schedule.group // 2 * schedule.group
    return range(first, first + schedule.group)
