"""Device memory of one rank at the peak of its step, by several measures.

Input: the peak of allocated bytes. Output: what torch's allocator must reserve for it, memory outside the allocator,
and the range by measured runs. The report has all of it; a search reads the verdict alone (`step_memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache

from simcore.frameworks.registry import hooks_of
from simcore.memory.ledger import peak_and_end
from simcore.memory.outside_allocator import OutsideMemory
from simcore.memory.reserved import Reserved, reserved
from simcore.pipeline.schedule import Action, actions
from simcore.placement.plan import Plan
from simcore.program.hooks import HooksFactory
from simcore.program.lower import lower
from simcore.program.record_layers import Workload
from simcore.simulation.paging import paged_bytes, resident
from simcore.simulation.simulation import Simulation

__all__ = ["DeviceMemory", "device_memory", "hottest"]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Device memory of one rank, in bytes.

    `seen`: what the allocator most likely holds, with its range; `device`: what the step needs, with `outside`, the
    bytes outside the allocator by category; `band`: range of `device` by measured runs.
    """

    seen: Reserved
    device: int
    band: tuple[int, int]
    outside: dict[str, int]


def device_memory(simulation: Simulation, plan: Plan, allocated: int, held: Sequence[OutsideMemory]) -> DeviceMemory:
    """Device memory of the plan's rank. `allocated`: at the peak of its step; `held`: outside the allocator."""
    beside, states = sum(one.num_bytes for one in held), paged_bytes(plan)
    unused = simulation.unused_in_pools
    seen = reserved(allocated, simulation.reserved_model(), simulation.usable_bytes() - beside - unused).plus(unused)
    needed = simulation.needed(allocated, hottest(simulation, plan)).plus(beside)
    low, middle, high = (resident(simulation, states, end) for end in astuple(needed))
    outside: dict[str, int] = {one.category: one.num_bytes for one in held}
    if states:
        outside["paged_states"] = middle
    return DeviceMemory(seen, needed.middle + middle, (needed.low + low, needed.high + high), outside)


def hottest(simulation: Simulation, plan: Plan) -> int:
    """Peak of allocated bytes on the plan's rank if its experts are the fullest, see [Note: hot ranks]; 0 if none are.

    The note is in `frameworks/common/hot_ranks.py`.
    """
    load = simulation.framework.fullest_load
    if load == 1:
        return 0
    workload = simulation.workload(plan)
    full = replace(workload, rows_per_token=int(workload.rows_per_token * load))
    order = actions(simulation.framework.schedule, plan.stage, simulation.num_written)
    return _peak(plan, full, tuple(order), hooks_of(simulation.framework))


@lru_cache(maxsize=1024)
def _peak(plan: Plan, workload: Workload, order: tuple[Action, ...], hooks: HooksFactory) -> int:
    """Peak of allocated bytes on the plan's rank: of the fullest experts, whose program is read for nothing else."""
    return peak_and_end(lower(plan, workload, order, hooks))[0]
