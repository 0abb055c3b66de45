"""Phases that a scenario asks for beside its steps: evaluation, merging of adapters, export."""

from __future__ import annotations

from simcore.errors import NotYet, Problem
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulation.conversion import converted
from simcore.simulation.evaluation import evaluated
from simcore.simulation.simulation import Simulation

__all__ = ["refuse_afterwards", "with_afterwards"]


def with_afterwards(simulation: Simulation, report: Report) -> Report:
    """Copy of the report of a training step whose host memory has the phases that the scenario asks for, in order.

    Unchanged where it asks for none, or not all ranks were simulated. Raises InputError, IllegalLayout or NotYet as the
    framework refuses an evaluation's sizes.
    """
    host = report.host
    if host is None:
        return report
    step = next(phase for phase in host.phases if phase.phase == "first_step")
    resting = {owner: size for owner, size in step.by_owner.items() if owner != "activations"}
    between, after = evaluated(simulation, report, resting), converted(simulation, report, resting)
    if not (between or after):
        return report
    before = tuple(phase for phase in host.phases if phase.phase != "save")
    saved = tuple(phase for phase in host.phases if phase.phase == "save")
    return report.model_copy(update={"host": host.model_copy(update={"phases": (*before, *between, *saved, *after)})})


def refuse_afterwards(scenario: Scenario) -> None:
    """Raises NotYet for evaluation, merging or export beside another workload than a plain training."""
    asked = {("evaluation",): scenario.evaluation is not None,
             ("checkpoint", "merge"): scenario.checkpoint.merge != "none",
             ("checkpoint", "export"): scenario.checkpoint.export != "none"}
    problems = [Problem(scenario.where(*key), f"not yet: {'.'.join(key)} with the workload {scenario.workload} "
                        "(served: train)") for key, given in asked.items() if given]
    if problems:
        raise NotYet(problems)
