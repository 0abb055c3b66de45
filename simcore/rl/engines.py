"""Engines that generate beside trainers, by the name in `generation.engine`: how each is made, and its assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from simcore.errors import NotYet, Problem
from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import Scenario
from simcore.results.report import Assumption
from simcore.rl.step.refit import Buffers, alternating, flattened
from simcore.sglang import workload as sglang
from simcore.vllm import workload as vllm
from simcore.vllm.engine import Engine
from simcore.vllm.protocol import InferenceEngine

__all__ = ["ENGINES", "Served", "served"]

Use = Literal["server", "library"]


@dataclass(frozen=True, slots=True)
class Served:
    """An inference engine. `make`: for a scenario's block `generation`; `told`: its assumptions.

    `buffers`: sizes of those through which NeMo RL sends it weights on a shared GPU.
    """

    make: Callable[[Scenario, Generation, Topology, Use], InferenceEngine]
    told: Callable[[InferenceEngine], Iterable[Assumption]]
    buffers: Buffers


def _told_of_vllm(engine: InferenceEngine) -> Iterable[Assumption]:
    assert isinstance(engine, Engine)
    return vllm.assumptions(engine)


ENGINES: Final[Mapping[str, Served]] = {
    "vllm": Served(vllm.engine_of, _told_of_vllm, alternating),
    "sglang": Served(sglang.engine_of, sglang.assumptions, flattened)}


def served(scenario: Scenario, given: Generation) -> Served:
    """The engine that is asked for; NotYet for another."""
    if given.engine not in ENGINES:
        raise NotYet(Problem(scenario.where("generation", "engine"), f"not yet: the engine {given.engine} (served: "
                             f"{', '.join(ENGINES)})"))
    return ENGINES[given.engine]
