"""The order of passes on a pipeline stage; each schedule is a file of `simcore/schedules`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

__all__ = ["Action", "actions", "lowered_microbatches", "steady_microbatch"]


@dataclass(frozen=True, slots=True)
class Action:
    """One entry: forward or backward of a microbatch; `is_last`: of the step."""

    forward: bool
    microbatch: int
    is_last: bool = False


def actions(name: str, stage: int, num_stages: int, num_microbatches: int) -> tuple[Action, ...]:
    """The passes of one stage under a schedule (file name of `simcore/schedules`)."""
    module = importlib.import_module(f"simcore.schedules.{_MODULE[name]}")
    order: tuple[Action, ...] = module.order(stage, num_stages, num_microbatches)
    return order


_MODULE = {"1f1b": "one_f_one_b"}
SCHEDULES = tuple(_MODULE)


def lowered_microbatches(num_stages: int, num_microbatches: int) -> int:
    """How many microbatches are written out at first: the first, a steady one, the last; more to fill a pipeline.

    If the steady ones do not take the same time, more are written out.
    """
    return min(num_microbatches, 3 if num_stages == 1 else 2 * num_stages + 2)


def steady_microbatch(num_lowered: int) -> int:
    """Of those written out, the one that stands for all that are not: on no stage in warm-up or cool-down."""
    return num_lowered // 2
