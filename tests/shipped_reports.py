"""Reports of scenarios that are shipped, each simulated once in a process of tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import simulate

__all__ = ["reports"]


@cache
def reports(file: Path) -> tuple[Report, ...]:
    """Reports of every scenario of a file, with times."""
    return tuple(simulate(scenario) for scenario in load(file))
