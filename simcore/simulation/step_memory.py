"""Memory of a step without its report: the verdict and the fullest rank, which is all that a search reads of a layout.

Owners, phases, traffic in bytes, assumptions and evidence are left out; the numbers are those of the report, which are
made by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simcore.frameworks.registry import at_rest_of
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Draws
from simcore.memory.ledger import peak_and_end
from simcore.memory.outside_allocator import outside
from simcore.placement.fold import RankClass
from simcore.placement.plan import Plan
from simcore.results.verdict import SEVERITY, Verdict, verdict_of
from simcore.simulation.device_memory import DeviceMemory, device_memory
from simcore.simulation.hosts import OnDevice, verdict_beside
from simcore.simulation.paging import away
from simcore.simulation.random_lengths import is_drawn
from simcore.simulation.report import grads_persist
from simcore.simulation.simulation import Simulation
from simcore.timing.traffic import groups

__all__ = ["StepMemory", "is_plain", "step_memory"]


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of a job: `Report.job_verdict`, `Report.highest_bytes` and `Report.headroom_bytes`."""

    verdict: Verdict
    highest_bytes: int
    headroom_bytes: int


def is_plain(scenario: Scenario) -> bool:
    """True for a training whose memory is that of its step, of reading and of writing the model.

    Not with drawn lengths or routing, and not with phases that the scenario asks for: evaluation, merging, export.
    """
    asked = scenario.evaluation is not None or scenario.checkpoint.merge != "none"
    drawn = is_drawn(scenario) or isinstance(scenario.training.routing, Draws)
    return not (scenario.workload != "train" or drawn or asked or scenario.checkpoint.export != "none")


def step_memory(simulation: Simulation) -> StepMemory:
    """Memory of a simulation of all ranks whose programs are made, for a plain training (`is_plain`)."""
    found = list(_ranks(simulation))
    limit = simulation.limit_bytes()
    step = verdict_of((memory.band for memory, _ in found), limit)
    pages = [away(plan, memory.outside) for plan, (memory, _) in zip(simulation.plans, found, strict=True)]
    beside = verdict_beside(simulation, [on_device for _, on_device in found], pages)
    highest = max(memory.device for memory, _ in found)
    return StepMemory(max(step, beside, key=lambda one: SEVERITY[one]), highest, limit - highest)


def _ranks(simulation: Simulation) -> Iterator[tuple[DeviceMemory, OnDevice]]:
    """Device memory of each class of ranks."""
    for rank_class, plan in zip(simulation.classes, simulation.plans, strict=True):
        yield _rank(simulation, rank_class, plan)


def _rank(simulation: Simulation, rank_class: RankClass, plan: Plan) -> tuple[DeviceMemory, OnDevice]:
    program = simulation.programs[rank_class.representative]
    peak, end = peak_and_end(program)
    held = (*outside(simulation.comm_setup(), groups(program, simulation.routes)),
            *simulation.uncounted_workspaces(plan))
    memory = device_memory(simulation, plan, peak, held)
    return memory, OnDevice(_grads(simulation, plan), end, sum(memory.outside.values()))


def _grads(simulation: Simulation, plan: Plan) -> int:
    """Bytes of gradients that are on the device before the step, with their padding."""
    if not grads_persist(simulation.framework):
        return 0
    at_rest = at_rest_of(simulation.framework)
    rest = (at_rest.exact if simulation.is_exact else at_rest.mean)(plan)
    return sum(part.grads_bytes for part in rest.values()) + at_rest.padding(plan, rest, exact=simulation.is_exact)[1]
