"""Comparison of a scenario with the framework itself: both sides are asked about one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from simcore.frameworks.setup import prepare
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.simulation.simulation import placed_simulation
from simcore.verify.ask import ask
from simcore.verify.compare import Line, compared
from simcore.verify.shrink import smaller
from simcore.verify.sides.found import found_of
from simcore.verify.sides.registry import side_of
from simcore.verify.sides.settings import settings_of_job
from simcore.verify.sides.side import Side

__all__ = ["Verified", "asked_case", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of one comparison.

    `name`: of the scenario. `framework`: as `Side.name`; `versions`: of the packages that ran. `smaller`: what was made
    smaller, such as "4 of 32 layers", on both sides. `rank` of `world`. `lines`: one a subject. `refused`: the
    framework's own words if it refused the layout, "" if it ran. `seconds`: of the framework's side.
    """

    name: str
    framework: str
    versions: dict[str, str]
    smaller: tuple[str, ...]
    rank: int
    world: int
    lines: tuple[Line, ...]
    refused: str
    seconds: float

    @property
    def agrees(self) -> bool:
        """True if the framework ran and nothing differs."""
        return not self.refused and not any(line.difference for line in self.lines)


def verify(scenario: Scenario, python: Callable[[Side], Path], *, rank: int = 0, layers: int | None = None,
           real: dict[str, Any] | None = None, timeout: float = 900) -> Verified:
    """Compares the engine's answer about `rank` with the scenario's framework.

    `python`: interpreter of an environment that has the framework. `layers`: number of layers that are built; None: a
    few. `real`: dotted keys that only the framework's side is given, by which a difference can be made on purpose.
    `timeout`: seconds for the framework's side. RankscopeError for a scenario that is not legal, that verify cannot
    tell the framework, or if the script fails.
    """
    side = side_of(scenario)
    small, made_smaller = smaller(scenario, layers, side.most_tokens)
    case, skipped = asked_case(side, changed(small, real, "--real-set") if real else small, rank)
    ours = side.ours(placed_simulation(small, rank=rank))
    interpreter, started = python(side), monotonic()
    told = ask(interpreter, side.script, case, timeout)
    refused = str(told.get("error", ""))
    theirs = None if refused else found_of(told)
    return Verified(scenario.name, side.name, dict(theirs.versions) if theirs else {}, made_smaller, rank,
                    scenario.world_size, compared(ours, theirs, skipped) if theirs else (), refused,
                    monotonic() - started)


def asked_case(side: Side, scenario: Scenario, rank: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns what the framework's script is asked about a rank, and the subjects that are not compared, with reasons.

    RankscopeError for a scenario that is not legal, or that has a key of which the script cannot be told.
    """
    settings = settings_of_job(*prepare(scenario))
    settings.expect_told(side.told, side.name)
    return side.case(settings, rank), dict(side.skipped(settings))
