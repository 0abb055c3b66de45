"""Length of a step that is to be written out, estimated beforehand: a step that the machine cannot hold is refused.

Comes in: the parts of a simulation. Goes out: the number of rows of all classes of ranks. Layers are recorded by then;
rows that flows and borders add are estimated.
"""

from __future__ import annotations

from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.bounds import ALL_ROWS, ROWS
from simcore.placement.plan import Plan
from simcore.program.record_layers import keys_of, record_layers
from simcore.results.report import Assumption, Report
from simcore.simulation.simulation import Simulation

__all__ = ["check_rows", "num_rows", "unlike"]

_LEAST: Final = 10
"""Rows of a layer in one microbatch, at least."""
_OF_BUFFER: Final = 8
"""Rows of a buffer of a stage's border: it is recorded six times, and takes more memory than rows inside layers."""
_OF_BUCKET: Final = 4
"""Rows of a bucket in a step: its gradients are reduced, its parameters gathered, and both are waited for."""
_GLANCES: Final = 4
"""Units of a prefetch that are found to be there already, in the time of a row."""


def num_rows(simulation: Simulation) -> int:
    """Estimated number of operations in the programs of all classes of ranks, one step each.

    A lower bound where that is already more than `bounds.ALL_ROWS`.
    """
    return sum(_rows_of(simulation))


def _rows_of(simulation: Simulation) -> list[int]:
    """Rows of each class."""
    least = [_LEAST * simulation.num_written * len(plan.layers) for plan in simulation.plans]
    return least if sum(least) > ALL_ROWS else [_of_plan(simulation, plan) for plan in simulation.plans]


def _of_plan(simulation: Simulation, plan: Plan) -> int:
    rows = record_layers(plan, simulation.workload(plan), several=simulation.num_written > 1).num_rows
    layers = sum(rows[key] for key in keys_of(plan).values())
    return simulation.num_written * (layers + _looked_at(plan)) + _of_buffers(plan)


def _of_buffers(plan: Plan) -> int:
    """Rows of buffers that stages have for every microbatch of the step, and of calls over buckets.

    Those are few for most models, and most of a step where experts have trillions of elements.
    """
    received = _OF_BUFFER * plan.framework.buffered_microbatches
    per_call = plan.framework.strategy.elements_per_call
    if not per_call or plan.stage:  # behind the first stage all parameters share a bucket
        return received
    numel = sum(part.num_trainable_params for part in plan.at_rest().values())
    tensors = sum(count * sum(placed.spec.copies for placed in plan.kinds[kind] if placed.spec.trainable)
                  for kind, count in plan.kind_counts)
    return received + _OF_BUCKET * min(numel // per_call, tensors)


def _looked_at(plan: Plan) -> int:
    num_layers = len(plan.layers)
    return 2 * num_layers * min(plan.framework.strategy.prefetch_depth, num_layers) // _GLANCES


def check_rows(simulation: Simulation) -> None:
    """Raises InputError if the step has too many operations, with the keys that make it so.

    More than `bounds.ROWS` on one class of ranks, or `bounds.ALL_ROWS` on all of them.
    """
    rows, scenario = _rows_of(simulation), simulation.job.scenario
    longest, kinds = max(rows), f"{len(rows):,} kinds of ranks (mesh)"
    most, found, told = (ROWS, longest, f"one of {kinds}") if longest > ROWS else (ALL_ROWS, sum(rows), kinds)
    if found <= most:
        return
    layers, count = len(simulation.job.graph.layers), scenario.num_microbatches
    key = ("training", "global_batch_size") if simulation.num_written > layers else ("model",)
    raise InputError(Problem(scenario.where(*key), f"expected a step of at most {most:,} operations where it is "
                             f"written out, got about {found:,}: {layers:,} layers (model) x "
                             f"{simulation.num_written:,} of {count:,} microbatches (training.global_batch_size, "
                             f"training.pipeline, mesh.pp) on {told}"))


def unlike(simulation: Simulation, report: Report) -> Report:
    """Copy of the report with one more assumption, if the simulated microbatches did not become steady.

    The assumption says how many left-out microbatches are taken to last as long as a simulated one. Otherwise the
    report is unchanged.
    """
    count = simulation.job.scenario.num_microbatches
    if simulation.timing is None or simulation.timing.steady or simulation.num_written == count:
        return report
    told = Assumption(what="step_s",
                      value=f"{count - simulation.num_written:,} of {count:,} microbatches taken to last as long "
                      f"as one of the {simulation.num_written:,} that were written out", kind="assumed",
                      source=f"they do not all last as long, and a step is written out up to {ROWS:,} operations")
    return report.model_copy(update={"assumptions": (*report.assumptions, told)})
