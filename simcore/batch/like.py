"""One scenario with the defaults of another: `compare --like` takes away differences that no scenario asks for.

Values are those of `results.settings`: what a framework chose where a scenario leaves a key out. They are set
one after the other, each that the framework accepts together with those before (`simulate.check`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from simcore.errors import InputError, Problem
from simcore.frameworks.registry import dispatchers_of
from simcore.inputs.document import parse_value
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.results.settings import DISPATCHER, differing_defaults, settings_of
from simcore.simulate import check

__all__ = ["Liked", "Refused", "made_like"]

_OPTION: Final = "framework_options."


class Refused(NamedTuple):
    """One setting whose `wanted` value the framework refuses: its key, the value that stays, the framework's reason."""

    key: str
    value: str
    wanted: str
    reason: str


@dataclass(frozen=True, slots=True)
class Liked:
    """A scenario with the settings of another, and each setting that it keeps."""

    scenario: Scenario
    kept: tuple[Refused, ...] = ()


def made_like(reference: Report, scenario: Scenario) -> Liked:
    """Scenario with the values of `reference` in every setting that differs because a framework chose.

    What the scenario itself sets stays. `reference` may be the report of a check alone. A scenario that the framework
    refuses as it is comes back unchanged.
    """
    own = check(scenario)
    if own.status != "ok":
        return Liked(scenario)
    wanted, kept, tried = settings_of(reference), list[Refused](), set[str]()
    while row := next((row for row in differing_defaults((reference, own)) if row.key not in tried
                       and row.by_default[1]), None):
        tried.add(row.key)
        try:
            scenario, own = _with(scenario, _keys(scenario, row.key, wanted[row.key].text))
        except InputError as error:
            problem = error.problems[0]
            rule = f" [{problem.rule}]" if problem.rule else ""
            kept.append(Refused(row.key, row.values[1], row.values[0], f"{problem.message}{rule}"))
    return Liked(scenario, tuple(kept))


def _keys(scenario: Scenario, key: str, value: str) -> dict[str, Any]:
    """Keys to set, with their values, for one setting; InputError for a dispatcher that the framework does not have."""
    if key != DISPATCHER:
        return {key: parse_value(value, f"--set {key}")}
    known = dispatchers_of(scenario.framework)
    if value not in known:
        raise InputError(Problem("framework_options", f"{scenario.framework} has {', '.join(known) or 'none'}"))
    return {f"{_OPTION}{option}": chosen for option, chosen in known[value].items()}


def _with(scenario: Scenario, keys: Mapping[str, Any]) -> tuple[Scenario, Report]:
    """Scenario with `keys` set, and the report of its check; InputError if a value or the layout is refused."""
    tried = changed(scenario, keys)
    report = check(tried)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    return tried, report
