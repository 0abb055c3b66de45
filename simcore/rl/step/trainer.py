"""Trainer of reinforcement learning, as a record: what its workers refuse, and its order of phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from simcore.errors import IllegalLayout, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.placement.strategy import RlWorker
from simcore.results.report import Assumption
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import GrpoStep
from simcore.rl.step.policy import Critic, Policy
from simcore.rl.step.refit import Gathered
from simcore.simulation.simulation import Simulation
from simcore.timing.routes import Routes
from simcore.vllm.protocol import InferenceEngine

__all__ = ["Step", "Trainer", "check_reference"]

Step = Callable[[Policy, GrpoStep], Journal]
"""Memory and time of a step on one class of ranks."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """Trainer whose workers run a step.

    `served`: frameworks in words; `workers`: of the strategies that it trains with. `keys`: those of the block `rl`
    that it alone reads. `check`: raises for what it refuses or is not described, by the scenario and
    the simulation of its forward passes. `step`: the step of a scenario, from
    the simulation of its forward passes and the plan of one rank; `sent`: gathering of all weights, from the plans of
    all stages. `told`: its assumptions. `in_place`: [Note: in place] in `forward.py`; `critic_apart`: a critic has
    processes of its own; `use`: how vLLM is started. `engines`: those that it generates with; `occupied`: bytes on a
    GPU beside one when it starts, of a policy and its critic. `distils`: its step of distillation is described.
    """

    served: str
    workers: tuple[RlWorker, ...]
    keys: tuple[str, ...]
    check: Callable[[Scenario, Simulation], None]
    step: Callable[[Scenario, Simulation, Plan], Step]
    sent: Callable[[Scenario, Sequence[Plan], Routes], Gathered]
    told: Callable[[Rl, InferenceEngine, GrpoStep], Iterable[Assumption]]
    in_place: bool
    critic_apart: bool
    use: Literal["server", "library"]
    engines: tuple[str, ...]
    occupied: Callable[[Rl, Policy, Critic | None], int]
    distils: bool = False


def check_reference(scenario: Scenario, told: str, rule: str) -> None:
    """IllegalLayout, with the rule, for a reference policy on the device, which the trainer never has."""
    if scenario.rl is not None and scenario.rl.reference == "device":
        raise IllegalLayout(Problem(scenario.where("rl", "reference"), f"reference: device: {told}", rule))
