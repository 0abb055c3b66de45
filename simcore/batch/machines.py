"""The smallest GPU of a list of machines on which a scenario fits, by its memory, then by its price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simcore.batch.decides import decides, is_likely, is_sure
from simcore.errors import InputError, Problem
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.placement.job import topology_of
from simcore.results.limit import Limit
from simcore.results.report import Report
from simcore.simulate import simulate

__all__ = ["by_size", "machine_of"]


@dataclass(frozen=True, slots=True)
class _Tried:
    """A machine with the report of the scenario on it; None with the reason where it is refused."""

    name: str
    report: Report | None
    refusal: str = ""

    @property
    def is_sure(self) -> bool:
        return self.report is not None and is_sure(self.report)


def by_size(scenario: Scenario, names: Sequence[str]) -> list[str]:
    """Machines from the least memory of a GPU to the most; of equal ones the cheapest first, then in the given order.

    InputError for a name that is none.
    """
    place = "--gpu-of"
    if not names:
        raise InputError(Problem(place, "expected machines, such as rtx-4090,dgx-h100; `rankscope solve` tries each"))
    found = {name: topology_of(changed(scenario, {"topology": name}, f"{place} {name}"[:120])) for name in names}
    prices = {name: math.inf if one.price_per_gpu_hour is None else one.price_per_gpu_hour.si
              for name, one in found.items()}
    return sorted(found, key=lambda name: (found[name].device.memory.total.si, prices[name]))


def machine_of(scenario: Scenario, names: Sequence[str]) -> Limit:
    """Smallest of the machines on which the scenario surely fits, all its other keys as they are.

    Every smaller one of the list is tried, so that the answer rests on no assumption. `beyond`: the next smaller one.
    """
    tried: list[_Tried] = []
    for name in by_size(scenario, names):
        tried.append(_tried(scenario, name))
        if tried[-1].is_sure:
            break
    likely = next((each.name for each in tried if each.report and is_likely(each.report)), None)
    possible = next((each.name for each in tried if each.report and each.report.job_verdict != "oom"), None)
    simulated = sum(each.report is not None for each in tried)
    last = tried.pop() if tried[-1].is_sure else None
    at, after = last.report if last else None, tried[-1] if tried else None
    there = after.report if after else None
    return Limit(
        name=scenario.name, quantity="machine", value=last.name if last else None,
        keys={"topology": last.name} if last else {}, peak_bytes=at.highest_bytes if at else None,
        headroom_bytes=at.headroom_bytes if at else None, likely=likely, possible=possible,
        beyond=after.name if after else None, beyond_verdict=there.job_verdict if there else None,
        beyond_bytes=there.highest_bytes if there else None, why=_why(after), num_simulated=simulated,
        problem="" if simulated or after is None else after.refusal)


def _why(tried: _Tried | None) -> str:
    if tried is None:
        return ""
    return f"refused: {tried.refusal}" if tried.report is None else decides(tried.report)


def _tried(scenario: Scenario, name: str) -> _Tried:
    try:
        other = changed(scenario, {"topology": name})
    except InputError as error:
        return _Tried(name, None, error.problems[0].message)
    report = simulate(other, timed=False)
    if report.verdict is None:
        return _Tried(name, None, report.problems[0].message if report.problems else "no memory is simulated")
    return _Tried(name, report)
