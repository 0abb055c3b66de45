"""Sides by the name of a scenario's framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.inputs.scenario import Scenario
from simcore.verify.sides import automodel, ddp, deepspeed, fsdp2, megatron
from simcore.verify.sides.side import Side

__all__ = ["SIDES", "side_of"]

SIDES: Final[Mapping[str, Side]] = {
    "automodel": automodel.SIDE, "ddp": ddp.SIDE, "fsdp2": fsdp2.SIDE, "megatron": megatron.SIDE,
    **deepspeed.SIDES}
"""Framework of a scenario -> its real side."""


def side_of(scenario: Scenario) -> Side:
    """Returns the real side of the scenario's framework; NotYet if there is none."""
    if scenario.workload != "train":
        raise NotYet(Problem(scenario.where("workload"), f"not yet: verify of the workload {scenario.workload}"))
    side = SIDES.get(scenario.framework)
    if side is None:
        raise NotYet(Problem(scenario.where("framework"), f"not yet: verify has no real side for {scenario.framework} "
                             f"(it has: {', '.join(sorted(SIDES))})"))
    return side
