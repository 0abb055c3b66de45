"""Refusals as reports: status illegal or error, with the problems in place of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from simcore.errors import IllegalLayout, Problem, RankscopeError
from simcore.inputs.scenario import Scenario
from simcore.results.report import ProblemRow, Report

__all__ = ["guarded"]


def guarded(scenario: Scenario, answer: Callable[[], Report]) -> Report:
    """Report that `answer` makes, or, if that raises a RankscopeError, a report of its problems.

    The latter has status illegal (IllegalLayout) or error.
    """
    try:
        return answer()
    except RankscopeError as error:
        located = type(error)(_located(problem, scenario) for problem in error.problems)
        return _failed(scenario, located, "illegal" if isinstance(error, IllegalLayout) else "error")


def _located(problem: Problem, scenario: Scenario) -> Problem:
    """Adds `file:line` where a problem names a key alone: layers of models and machines know no file."""
    key = problem.where.split(".")
    return replace(problem, where=scenario.where(*key)) if key[0] in type(scenario).model_fields else problem


def _failed(scenario: Scenario, error: RankscopeError, status: Literal["illegal", "error"]) -> Report:
    """The report of a scenario that was refused."""
    problems = tuple(ProblemRow(where=p.where, message=p.message, rule=p.rule) for p in error.problems)
    return Report(name=scenario.name, scenario=scenario.normalised(), status=status, problems=problems)
