"""The path of the data: scenario -> job -> classes -> plans -> programs -> ledger and timeline -> report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Unpack

from simcore.errors import NotYet, Problem
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulation.afterwards import refuse_afterwards
from simcore.simulation.random_lengths import is_drawn, with_lengths
from simcore.simulation.report import guarded, report
from simcore.simulation.simulation import legal_simulation, placed_by_rank
from simcore.simulation.step import Asked, Request, training_step
from simcore.simulation.step import first_num_rows as rows_of

__all__ = ["check", "place", "rows_of", "simulate"]


def simulate(scenario: Scenario, **asked: Unpack[Asked]) -> Report:
    """Simulates one step of a scenario (or its engine alone, where it serves) and returns the report.

    `asked`: keywords named as the fields of `Request` (`simulation/step.py`), which says what is in it; by default
    memory, traffic and time. Any RankscopeError (refused layout, wrong input, not modelled) comes back as a report with
    its problems.
    """
    return guarded(scenario, partial(_simulated, scenario, Request(**asked)))


def place(scenario: Scenario, *, rank: int | None = None) -> Report:
    """Report of the bytes of parameters, gradients and optimizer states at rest, for each class of equal ranks.

    Without a peak and without times; for the workload `serve` the engine's whole report. `rank`: only this rank; None:
    all. A RankscopeError, such as a refused layout, comes back as a report with its problems.
    """
    if scenario.workload == "serve":
        return guarded(scenario, partial(_served, scenario))
    return guarded(scenario, lambda: report(placed_by_rank(scenario, rank), series=False))


def check(scenario: Scenario) -> Report:
    """Report that says if the framework accepts the scenario's layout, by its rules and the engine's own.

    Nothing is placed or simulated: no ranks and no time. A refusal or wrong input is in its `status` and `problems`.
    """
    return guarded(scenario, partial(_checked, scenario))


def _simulated(scenario: Scenario, request: Request) -> Report:
    if scenario.workload != "train":
        return _other_workload(scenario, request)
    if not is_drawn(scenario):
        return training_step(scenario, request)
    return with_lengths(scenario, prepare(scenario)[1].padding,
                        partial(training_step, request=replace(request, timed=False)),
                        partial(training_step, request=request))


def _checked(scenario: Scenario) -> Report:
    if scenario.workload != "train":
        refuse_afterwards(scenario)
    if scenario.workload == "serve":
        return _served(scenario, ranks=False)
    if scenario.workload != "train":
        from simcore.rl.workload import legal

        legal(scenario)
    return report(legal_simulation(scenario), series=False)


# other workloads are imported where one is asked for: most runs have none of them
def _other_workload(scenario: Scenario, request: Request) -> Report:
    refuse_afterwards(scenario)
    if request.rank is not None:
        raise NotYet(Problem("--rank", f"not yet: one rank of the workload {scenario.workload}"))
    if scenario.workload == "serve":
        return _served(scenario)
    from simcore.rl.workload import in_phases

    return in_phases(scenario, series=request.has_series, timed=request.timed)


def _served(scenario: Scenario, *, ranks: bool = True) -> Report:
    from simcore.vllm.workload import serve

    return serve(scenario, ranks=ranks)
