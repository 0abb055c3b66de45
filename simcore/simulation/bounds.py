"""Lower bounds of a job's memory and time that are cheap and proven, by which a search leaves layouts out.

[Note: bounds]
Memory: parameters, reduced gradients that persist and optimizer states of a rank are on its device before the step
begins, so its peak is at least their bytes. What the step allocates, and everything outside torch's allocator, is left
out. Where a report has only the mean of what ranks hold, the fullest of them holds at least the mean.

Time: what a rank's compute stream, its host and its links do takes at least the sums of `timing/least_time.py`. Under
1F1B a stage begins when those before it have run a forward pass, and they run a backward pass when it has ended.
Waiting of every other kind is left out. Microbatches that are not simulated one by one repeat the steady ones: each
repetition takes as long as the rank with the least work in it, at least. It also takes at least as long as any host
needs to issue its kernels and calls in line, where the microbatches that are written out are steady (`timing/step.py`,
_is_steady). Where they are not, more of them are written out, each of which takes its least time on the stream or the
host, in the end all, and then the host issues all of the step's rows; the bound is the lowest of these cases. A host
that stops in a steady microbatch gains no lead (_with_lead), so all of its rows count; of another one those until the
steady ones end, from where its lead is counted. Where all microbatches are too many rows to be written out, those left
out take at least their kernels. Host time once a step comes on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcore.frameworks.registry import at_rest_of
from simcore.pipeline.schedule import steady_microbatches
from simcore.placement.mesh import IntArray
from simcore.simulation.simulation import Simulation
from simcore.simulation.step import tried_numbers
from simcore.timing.least_time import LeastTimes
from simcore.timing.step import once_ns

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
    once = once_ns(simulation.topology, framework, simulation.job.mesh.size)
    of_compute, of_host = [one.busy() for one in each], [one.issue() for one in each]
    steady = steady_microbatches(framework.schedule, simulation.num_written)
    repeats = (count - simulation.num_written) // len(steady)
    busy = max(*map(_sum, of_compute), _through_stages(simulation, each))
    links = max(one.on_links() for one in each)
    if not repeats:
        return max(busy, links, *map(_sum, of_host)) + once
    again = slice(steady.start, steady.stop)
    busy_again, host_again = (min(_sum(ns[again]) for ns in some) for some in (of_compute, of_host))
    fastest = max(busy_again, *(_sum(one.own_issue()[again]) for one in each))

    def extrapolated(number: int) -> int:
        """Least ns where so many microbatches were steady."""
        more = (number - simulation.num_written) // len(steady)
        before = (steady_microbatches(framework.schedule, number).start - steady.start) // len(steady)
        host = max(_sum(ns) + more * host_again if one.stops(steady)
                   else one.around(steady) + before * host_again + (more - before) * busy_again
                   for one, ns in zip(each, of_host, strict=True))
        return max(busy + more * busy_again, host, links) + (repeats - more) * fastest

    whole = max(_sum(ns) + repeats * _sum(ns[again]) for ns in of_host)
    least = [min(whole, *map(extrapolated, numbers)) for numbers in (tried_numbers(simulation),) if numbers]
    return max(busy + repeats * busy_again, *least) + once


def _through_stages(simulation: Simulation, each: Sequence[LeastTimes]) -> int:
    """Least ns of a pipeline: what a stage computes, and stages before it until it can begin and after its end.

    0 without a pipeline, and for schedules of other orders.
    """
    schedule = simulation.framework.schedule
    if schedule.num_stages == 1 or schedule.name != "1f1b":
        return 0
    parts: dict[int, list[tuple[int, int, int]]] = {}
    for rank_class, one in zip(simulation.classes, each, strict=True):
        parts.setdefault(rank_class.stage, []).append(one.across())
    outside = most = 0
    for _, of_stage in sorted(parts.items()):
        until, own, after = zip(*of_stage, strict=True)
        most = max(most, outside + max(own))
        outside += min(until) + min(after)
    return most


def _sum(ns: IntArray) -> int:
    return int(np.sum(ns))
