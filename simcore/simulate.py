"""The path of the data: scenario -> job -> classes -> plans -> programs -> ledger and timeline -> report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final, Unpack

from simcore.errors import InputError, Problem, RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.results.report import NO_STEP, Assumption, Report
from simcore.simulation.afterwards import refuse_afterwards
from simcore.simulation.random_lengths import at_length, drawn_lengths, is_drawn, with_lengths
from simcore.simulation.report import guarded, report
from simcore.simulation.simulation import legal_simulation, placed_by_rank
from simcore.simulation.step import Asked, Request, training_step
from simcore.simulation.step import check_step as check_written
from simcore.simulation.step import first_num_rows as rows_of

__all__ = ["answered", "check", "check_step", "place", "rows_of", "simulate"]

_LAYERS: Final = "the operations of a step, which `run` simulates"


def simulate(scenario: Scenario, **asked: Unpack[Asked]) -> Report:
    """Simulates one step of a scenario (or its engine alone, where it serves) and returns the report.

    `asked`: keywords named as the fields of `Request` (`simulation/step.py`), which says what is in it; by default
    memory, traffic and time. Any RankscopeError (refused layout, wrong input, not modelled) comes back as a report with
    its problems.
    """
    return guarded(scenario, partial(answered, scenario, **asked))


def answered(scenario: Scenario, **asked: Unpack[Asked]) -> Report:
    """Report of `simulate` on a scenario that is not refused; raises the RankscopeError that says why it is."""
    request = Request(**asked)
    if scenario.workload != "train":
        return _other_workload(scenario, request)
    if not is_drawn(scenario):
        return training_step(scenario, request)
    return with_lengths(scenario, prepare(scenario)[1].padding,
                        partial(training_step, request=replace(request, timed=False)),
                        partial(training_step, request=request))


def place(scenario: Scenario, *, rank: int | None = None) -> Report:
    """Report of the bytes of parameters, gradients and optimizer states at rest, for each class of equal ranks.

    Without a peak and without times; for the workload `serve` the engine's whole report. `rank`: only this rank; None:
    all. An assumption named `NO_STEP` says why the step is not simulated, where only the placement is served. A
    RankscopeError, such as a refused layout, comes back as a report with its problems.
    """
    if scenario.workload == "serve":
        return guarded(scenario, partial(_served, scenario))
    return guarded(scenario, partial(_placed, scenario, rank))


def check(scenario: Scenario, *, rules_only: bool = False) -> Report:
    """Report that says if `simulate` answers: the framework accepts the layout, and its operators are modelled.

    Operations of a step are written out (`simulation/step.py`, `check_step`) and dropped: the report has no ranks, no
    memory and no time. A refusal or wrong input is in its `status` and `problems`, as `simulate` has them.
    `rules_only`: only the rules are asked, a few times faster; a training step may still lack operators.
    """
    return guarded(scenario, partial(_checked, scenario, rules_only=rules_only))


def check_step(scenario: Scenario) -> None:
    """Raises what a training step raises before it is timed; of drawn lengths the longest is asked, which is first."""
    if is_drawn(scenario):
        scenario = at_length(scenario, drawn_lengths(scenario, prepare(scenario)[1].padding)[1].max)
    check_written(legal_simulation(scenario))


def _checked(scenario: Scenario, *, rules_only: bool) -> Report:
    if scenario.workload != "train":
        refuse_afterwards(scenario)
    if scenario.workload == "serve":
        return _served(scenario, ranks=False)
    if scenario.workload != "train":
        from simcore.rl.workload import legal

        legal(scenario)
    asked = legal_simulation(scenario)
    if scenario.workload == "train" and not rules_only:
        check_step(scenario)
    return report(asked, series=False)


def _placed(scenario: Scenario, rank: int | None) -> Report:
    found = report(placed_by_rank(scenario, rank), series=False)
    try:
        if scenario.workload == "train":
            check_step(scenario)
    except RankscopeError as error:
        told = Assumption(what=NO_STEP, value=error.problems[0].message, kind="derived", source=_LAYERS)
        return found.model_copy(update={"assumptions": (*found.assumptions, told)})
    return found


# other workloads are imported where one is asked for: most runs have none of them
def _other_workload(scenario: Scenario, request: Request) -> Report:
    refuse_afterwards(scenario)
    if scenario.workload == "serve":
        if request.rank is not None:
            raise InputError(Problem("--rank", "serve: all ranks of an engine hold the same"))
        return _served(scenario)
    from simcore.rl.report import of_one_rank
    from simcore.rl.workload import in_phases

    found = in_phases(scenario, series=request.has_series, timed=request.timed)
    return found if request.rank is None else of_one_rank(found, request.rank, scenario.limits.max_fill)


def _served(scenario: Scenario, *, ranks: bool = True) -> Report:
    from simcore.vllm.workload import serve

    return serve(scenario, ranks=ranks)
