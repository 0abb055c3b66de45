"""Lower bounds of a job's memory and time that are cheap and proven, by which a search leaves layouts out.

[Note: bounds]
Memory: parameters, reduced gradients that persist and optimizer states of a rank are on its device before the step
begins, so its peak is at least their bytes. What the step allocates, and everything outside torch's allocator, is left
out. Where a report has only the mean of what ranks hold, the fullest of them holds at least the mean.

Time: the kernels of one rank run one after the other on its compute stream, each at least as long as alone on an idle
device, so the step takes at least their sum. Waiting of every kind is left out. Microbatches that are not simulated one
by one repeat the steady ones: each repetition takes as long as the kernels of the rank with the fewest, at least.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcore.frameworks.registry import at_rest_of
from simcore.pipeline.schedule import steady_microbatches
from simcore.simulation.simulation import Simulation
from simcore.timing.step import kernel_ns

__all__ = ["is_too_large_at_rest", "least_step_ns"]


def is_too_large_at_rest(simulation: Simulation) -> bool:
    """True if what rests on some rank does not fit into its device, by the low end of the band of measured errors.

    Such a job is out of memory ("oom", not "unsure"), whatever its step allocates. The simulation needs only plans.
    """
    most = max(_at_rest(simulation))
    return simulation.needed(most).low > simulation.limit_bytes()


def _at_rest(simulation: Simulation) -> Iterator[int]:
    """Bytes at rest on the device of the mean rank of each stage, the fewest that its fullest rank can hold."""
    count = at_rest_of(simulation.framework).mean
    by_stage: dict[int, list[int]] = {}
    for rank_class, plan in zip(simulation.classes, simulation.plans, strict=True):
        held = sum(part.params_bytes + part.optimizer_bytes for part in count(plan).values())
        sums = by_stage.setdefault(rank_class.stage, [0, 0])
        sums[0] += max(0, held - sum(plan.elsewhere().values())) * rank_class.num_ranks
        sums[1] += rank_class.num_ranks
    return (held // ranks for held, ranks in by_stage.values())


def least_step_ns(simulation: Simulation) -> int:
    """Lower bound in ns of the step of a simulation whose programs are made."""
    programs = [simulation.programs[c.representative] for c in simulation.classes]
    topology, framework = simulation.topology, simulation.framework
    steady = steady_microbatches(framework.schedule, simulation.num_written)
    repeats = (simulation.job.scenario.num_microbatches - simulation.num_written) // len(steady)
    each = [kernel_ns(program, topology, framework) for program in programs]
    again = min(int(np.sum(ns[steady.start:steady.stop])) for ns in each)
    return max(int(np.sum(ns)) for ns in each) + repeats * again
