"""Paged optimizer states: what of them has room on the device, and the least time of the pages that have not.

[Note: paged states]
bitsandbytes 0.50.2 keeps states of 100,000 values or more in unified memory (`functional.py` get_paged,
cudaMallocManaged). `optim/optimizer.py`, step: for each parameter in turn its states are prefetched to the device
(`csrc/pythonInterface.cpp` cprefetch, cudaMemPrefetchAsync), updated by a kernel, and the host waits (sync_gpu).
Nothing is prefetched for the next parameter meanwhile (the call of prefetch_all is commented out), so pages hide behind
no kernel. The driver moves pages to the host when an allocation needs their room (CUDA C++ Programming Guide, unified
memory: oversubscription from compute capability 6.0 on). Torch's allocator keeps what it has reserved, so states have
what is left beside a step's peak.

A page is in one place, so what has no room on the device lies on the host, at least: documentation does not say whether
the driver keeps the host's memory of pages that have moved to the device, up to all states.

What has no room comes to the device and leaves it once a step, at least: the bytes of one direction at the rate of the
link, as both directions work at the same time. A driver that evicts what was used longest ago moves all pages in each
step, because they are used in turn; which pages it evicts is not documented, so the time is a least one. Where host and
device share one memory nothing moves, and nothing makes room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simcore.placement.plan import Plan
from simcore.results.report import Assumption
from simcore.simulation.simulation import Simulation
from simcore.timing.breakdown import Sent
from simcore.timing.step import StepTiming
from simcore.units import format_bytes

__all__ = ["away", "of_paging", "paged_bytes", "resident", "with_paging"]

_SOURCE: Final = "bitsandbytes 0.50.2 optim/optimizer.py step, prefetch_state; see simcore/simulation/paging.py"


def paged_bytes(plan: Plan) -> int:
    """Bytes of a rank's optimizer states in memory that the driver pages."""
    return plan.elsewhere().get("managed", 0)


def away(plan: Plan, outside: Mapping[str, int]) -> int:
    """Bytes of paged states that have no room on the device at the peak, and are on the host.

    `outside`: bytes outside the allocator there, by category.
    """
    return paged_bytes(plan) - outside.get("paged_states", 0)


def resident(simulation: Simulation, paged: int, needed: int) -> int:
    """Bytes of `paged` states that stay on the device beside `needed` bytes; all where the host has no other memory."""
    if simulation.topology.node.unified:
        return paged
    return min(paged, max(0, simulation.limit_bytes() - needed))


def with_paging(simulation: Simulation, timing: StepTiming, num_bytes: int) -> StepTiming:
    """Times of a step in which `num_bytes` of states come to the device and leave it, see [Note: paged states]."""
    link = simulation.topology.node.host_link
    ns = round(num_bytes / min(link.to_device.si, link.to_host.si) * 1e9)
    if not ns:
        return timing
    parts = timing.spending.parts | {"communication": timing.spending.parts["communication"] + ns}
    sent = (*timing.spending.sent, Sent("copy", "to_device", 1, ns, ns, 0))
    phases = timing.phase_ns | {"optimizer": timing.phase_ns["optimizer"] + ns}
    return replace(timing, step_ns=timing.step_ns + ns, phase_ns=phases,
                   spending=replace(timing.spending, parts=parts, sent=sent))


def of_paging(paged: int, away: int) -> tuple[Assumption, ...]:
    """Assumption about pages without room; () if all have some. `away`: bytes of `paged` that have none."""
    if not away:
        return ()
    return (Assumption(what="pages of optimizer states", kind="assumed", source=_SOURCE, value=f"{format_bytes(away)} "
                       f"of {format_bytes(paged)} wait on the host and cross its link each step, each way, at least; "
                       "all of them if the driver evicts what was used longest ago"),)
