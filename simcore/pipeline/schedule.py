"""The order of passes on a pipeline stage; each schedule is a module of `simcore/pipeline`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["SCHEDULES", "ZERO_BUBBLE", "Action", "Part", "Pass", "Schedule", "actions", "lowered_microbatches",
           "steady_microbatches"]

Pass = tuple[bool, int, int]
"""(True for forward or False for backward, chunk, microbatch)."""

Part = Literal["whole", "input", "weight"]
"""Part of a pass: all of it or, in a backward pass, the gradient of the chunk's input or those of its parameters."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline schedule: its name, and the sizes on which the order of passes depends.

    `name`: 1f1b, gpipe, interleaved (Megatron's virtual stages), looped (PyTorch's), zb_h1, interleaved_zb or zbv.
    `num_stages`: number of ranks of the pipeline; each holds `num_chunks` chunks (parts of the model). `group`: number
    of microbatches that a chunk takes in a row before the rank's next chunk does; the order of a step repeats from
    group to group. `run`: number of microbatches after which the pipeline is empty and the schedule begins again
    within a step; 0: the step is one run.
    """

    name: str = "1f1b"
    num_stages: int = 1
    num_chunks: int = 1
    group: int = 1
    run: int = 0

    @property
    def period(self) -> int:
        """Number of microbatches after which the order of a step repeats: those of a run, or of a group."""
        return self.run or self.group

    @property
    def splits_backward(self) -> bool:
        """True if backward runs as two passes: gradients of the inputs first, those of the parameters later."""
        return self.name in ZERO_BUBBLE

    @property
    def turns(self) -> bool:
        """True if a rank's second chunk lies on the way back up the model: the last rank sends to itself."""
        return self.name == "zbv"

    @property
    def num_rounds(self) -> int:
        """Messages of a microbatch from a rank to the next one, but for the last rank, which sends one less."""
        return 1 if self.turns else self.num_chunks

    def parts_of(self, rank: int) -> tuple[int, ...]:
        """Indices, among all num_stages * num_chunks chunks of the model, of those that pipeline rank `rank` holds.

        Chunk 0 is the model's first part. Round robin; under zbv one chunk on the way down the model and one on the way
        back up.
        """
        if self.turns:
            return rank, 2 * self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages * self.num_chunks, self.num_stages))


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of a rank: forward or backward of a microbatch through a chunk (part of the model).

    `chunk`: index among the rank's own chunks; `microbatch`: from 0, in the order of their first forward. `is_last`:
    the chunk's last forward, or last complete backward, of the schedule's run, in most cases the step. `ahead`: passes
    whose input the rank begins to receive when this pass is over (inputs of all others: when their pass begins).
    `keeps_output`: the tensor that was sent is freed when the backward pass after it is over, not at once. `reduces`:
    chunks whose gradients are reduced over data-parallel ranks when this pass is over. `part`: of a split backward;
    "input" is first and receives the gradient.
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
        """The pass as a tuple: (True for forward or False for backward, chunk of the rank, microbatch)."""
        return self.forward, self.chunk, self.microbatch


def actions(schedule: Schedule, stage: int, num_microbatches: int) -> tuple[Action, ...]:
    """Forward and backward passes that pipeline stage `stage` runs for `num_microbatches`, in order.

    The order is that of the module that `schedule.name` stands for; stages and microbatches are counted from 0. Of
    several runs one follows another, `num_microbatches` is then a multiple of `schedule.run`.
    """
    module = importlib.import_module(f"simcore.pipeline.{_MODULE[schedule.name]}")
    of_run = schedule.run or num_microbatches
    order: tuple[Action, ...] = module.order(schedule, stage, of_run)
    return order if of_run == num_microbatches else tuple(
        _later(action, first) for first in range(0, num_microbatches, of_run) for action in order)


def _later(action: Action, first: int) -> Action:
    """The pass in a run whose first microbatch is number `first` of the step."""
    ahead = tuple((forward, chunk, microbatch + first) for forward, chunk, microbatch in action.ahead)
    return replace(action, microbatch=action.microbatch + first, ahead=ahead)


ZERO_BUBBLE = ("zb_h1", "interleaved_zb", "zbv")
"""Schedules whose backward passes are split."""

SCHEDULES = ("1f1b", "gpipe", *ZERO_BUBBLE)
"""Schedules that a scenario may ask for; with virtual stages 1f1b is interleaved."""

_MODULE = {"1f1b": "one_f_one_b", "gpipe": "gpipe", "interleaved": "interleaved", "looped": "looped",
           "zb_h1": "zero_bubble", "interleaved_zb": "zero_bubble", "zbv": "zbv"}

_RUNS = 3
"""Runs that are simulated of a step of more: the first, one that stands for others, the last."""

WRITTEN_OUT = ("gpipe",)
"""Those of which no microbatch stands for others: all of a step are in flight at once."""


def lowered_microbatches(schedule: Schedule, num_microbatches: int, doublings: int = 0) -> int:
    """Number of microbatches of a step that are simulated one by one; the steady ones among them stand for the rest.

    `num_microbatches`: of the step. They fill and empty the pipeline (warm-up and cool-down of an interleaved stage
    take less than two groups each; under zbv twice as long as with one chunk), in full groups and the remainder of the
    step's last group. `doublings`: how often the number of groups is doubled, because the steady microbatches did not
    take the same time. Under GPipe all of them. Of several runs: a few whole ones.
    """
    if schedule.run:
        return min(num_microbatches, (_RUNS << doublings) * schedule.run)
    if schedule.name in WRITTEN_OUT:
        return num_microbatches
    p, chunks = schedule.num_stages, schedule.num_chunks
    groups = 3 if p == 1 else 4 * p + 2 if schedule.turns else 2 * p + 2 if chunks == 1 else 5
    return min(num_microbatches, (groups << doublings) * schedule.group + num_microbatches % schedule.group)


def steady_microbatches(schedule: Schedule, num_lowered: int) -> range:
    """Indices of simulated microbatches (one group, or one run) that stand for the omitted ones.

    They lie in the middle, where no stage is in warm-up or cool-down. `num_lowered`: number of simulated microbatches.
    Such a group is returned too where none is omitted.
    """
    first = num_lowered // schedule.period // 2 * schedule.period
    return range(first, first + schedule.period)
