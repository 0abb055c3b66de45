"""Lower bounds of a job's memory and time that are cheap and proven, by which a search leaves layouts out.

[Note: bounds]
Memory: parameters, reduced gradients that persist and optimizer states of a rank are on its device before the step
begins, so its peak is at least their bytes. What the step allocates, and everything outside torch's allocator, is left
out. Where a report has only the mean of what ranks hold, the fullest of them holds at least the mean.

Time: what a rank's compute stream, its host and its links do takes at least the sums of `timing/least_time.py`. Waiting
of every other kind is left out. Microbatches that are not simulated one by one repeat the steady ones: each repetition
takes as long as the rank with the least work in it, at least. It also takes at least as long as any host needs to issue
its kernels, where the microbatches that are written out are steady (`timing/step.py`, _is_steady). Where they are not,
more of them are written out, in the end all, and then the host issues all of the step's rows; the bound is the lowest
of these cases.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcore.frameworks.registry import at_rest_of
from simcore.pipeline.schedule import steady_microbatches
from simcore.placement.mesh import IntArray
from simcore.simulation.simulation import Simulation
from simcore.simulation.step import most_lowered
from simcore.timing.least_time import LeastTimes

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
    framework, count = simulation.framework, simulation.job.scenario.num_microbatches
    each = [LeastTimes(simulation.programs[c.representative], simulation.routes, framework)
            for c in simulation.classes]
    steady = steady_microbatches(framework.schedule, simulation.num_written)
    again = slice(steady.start, steady.stop)
    repeats = (count - simulation.num_written) // len(steady)
    of_compute, of_host = [one.busy() for one in each], [one.issue() for one in each]
    busy, busy_again = max(map(_sum, of_compute)), min(_sum(ns[again]) for ns in of_compute)
    if not repeats:
        return max(busy, *map(_sum, of_host), *(one.on_links() for one in each))
    whole = max(_sum(ns) + repeats * _sum(ns[again]) for ns in of_host)
    fastest = max(busy_again, *(_sum(one.kernel_issue()[again]) for one in each))
    written = (most_lowered(simulation) - simulation.num_written) // len(steady)
    extrapolated = busy + written * busy_again + (repeats - written) * fastest
    return max(busy + repeats * busy_again, min(whole, extrapolated))


def _sum(ns: IntArray) -> int:
    return int(np.sum(ns))
