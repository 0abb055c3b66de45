"""Assumptions that a report lists: each with its value, how far it can be trusted, and its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simcore.frameworks.idle_options import idle_options
from simcore.memory.band import layout_class
from simcore.memory.outside_allocator import OutsideMemory
from simcore.memory.reserved import GATHERED, ORDINARY
from simcore.models.names import of_preset
from simcore.placement.packing import assumptions as packing_assumptions
from simcore.results.report import Assumption, Peak
from simcore.simulation.simulation import Simulation
from simcore.units import format_bytes

__all__ = ["of_flushes", "of_job", "of_memory"]


def of_job(simulation: Simulation) -> tuple[Assumption, ...]:
    """Assumptions about the job: the framework's defaults, open points of the model, sequence lengths."""
    chosen = [Assumption(what=key, value=value, kind="default", source=source)
              for key, value, source in simulation.framework.defaults]
    if reason := simulation.job.graph.architecture.assumed:
        chosen.append(Assumption(what="model", value="a shape that was never published", kind="assumed", source=reason))
    chosen += [Assumption(what=what, value=value, kind="assumed", source=source)
              for what, value, source in simulation.job.graph.architecture.ignored]
    of_lengths = packing_assumptions(simulation.job.scenario.training)
    noted = [Assumption.model_validate({"what": w, "value": v, "kind": k, "source": s})
             for w, v, k, s in (*of_preset(simulation.job.scenario.model_name), *simulation.framework.assumptions,
                                *idle_options(simulation.job, simulation.framework), *of_lengths)]
    return (*chosen, *noted, *_of_power(simulation))


def _of_power(simulation: Simulation) -> tuple[Assumption, ...]:
    """Power limit below the GPU's own power, and what it takes of its rate; () without one."""
    device = simulation.topology.device
    if device.power is None or device.power_limit is None:
        return ()
    share = f"matrix units at {device.rate_share:.1%} of their rate"
    value = f"{device.power_limit.value} of {device.power.value}: {share}"
    return (Assumption(what="topology.power_limit", value=value, kind="assumed",
                       source="stages of GPT-3 and BLOOM on an A100 SXM at lower clocks (ml-energy/zeus 38cb3f90); "
                              "other GPUs are taken to be like it"),)


def of_memory(simulation: Simulation, held: Sequence[tuple[OutsideMemory, ...]]) -> tuple[Assumption, ...]:
    """Assumptions about the parts of allocated, reserved and device memory, and about host memory.

    `held`: memory outside the allocator by class of ranks; of each category the largest is listed. () if
    there is none at all.
    """
    if not any(held):
        return ()
    counted = simulation.framework.strategy.counts_workspaces
    away = {space: max(plan.elsewhere().get(space, 0) for plan in simulation.plans)
            for plan in simulation.plans for space in plan.elsewhere() if space != "managed"}
    kept = {space.name: space for spaces in simulation.workspaces.values() for space in spaces if counted}
    outside = sorted((one for ones in held for one in ones), key=lambda one: one.num_bytes)
    largest = {one.category: one for one in outside}
    return (*(Assumption(what=f"outside the device, {space}", value=f"{format_bytes(size)} on the rank with the most",
                         kind="derived", source="training.offload") for space, size in away.items()),
            *(Assumption(what=s.name, value=format_bytes(s.num_bytes), kind=s.kind, source=s.source)
              for s in kept.values()),
            *(Assumption(what=one.category, value=format_bytes(one.num_bytes), kind=one.kind, source=one.source)
              for one in largest.values()), _of_reserved(simulation), _of_band(simulation))


def of_flushes(peaks: Iterable[Peak], capacity: int) -> tuple[Assumption, ...]:
    """Assumption that no time goes into flushes of torch's cache, where a rank may reserve the whole device; else ().

    `peaks`: those of ranks that fit or may fit; `capacity`: bytes of the device.
    """
    if all(peak.reserved_band_bytes[1] + sum(peak.outside.values()) < capacity for peak in peaks):
        return ()
    told = "flushes of the allocator's cache take no time: reserved memory may reach the device's end, where they begin"
    return (Assumption(what="time.step_s", value=told, kind="assumed",
                       source="torch 2.13 cuda/memory.py num_alloc_retries: a cudaMalloc that fails flushes the cache "
                              "and is tried again; no published run tells its number"),)


def _of_reserved(simulation: Simulation) -> Assumption:
    shares = simulation.reserved_model()
    value = f"allocated + {shares.middle:.1%}, at most {shares.high:.1%}"
    if shares == ORDINARY:
        return Assumption(what="reserved_bytes", value=value, kind="calibrated", source="readings of both on one "
                          "rank: simumax-b200 (11), mbridge-card (6); low end: allocated, in segments")
    if shares == GATHERED:
        return Assumption(what="reserved_bytes", value=f"{value}, while there is room", kind="calibrated",
                          source="readings beside what is simulated: torchtitan (2), torchtitan-log (3); what is kept "
                          f"beyond {ORDINARY.middle:.1%} is cache that torch gives back before it fails")
    return Assumption(what="reserved_bytes", value=value, kind="assumed", source="expandable segments: no reading of "
                      "both on one rank; a replay of torch's allocator, see simcore/memory/reserved.py")


def _of_band(simulation: Simulation) -> Assumption:
    name, band = layout_class(simulation.job, simulation.framework), simulation.band
    told = f"{band.num} observations" if band.num else "unvalidated: no measured run of this class"
    return Assumption(
        what="band_bytes", value=f"{name}: {band.low - 1:+.1%} to {band.high - 1:+.1%}, {told}",
        kind="calibrated" if band.num else "assumed", source="10% and 90% of measured over simulated, bands.json")
