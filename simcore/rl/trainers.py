"""Trainers whose workers run a step of reinforcement learning, by name.

NeMo RL trains policies over DTensors and Megatron (`nemo_rl.py`), verl over FSDP 1 and 2 and over Megatron (`verl/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.errors import InputError, NotYet, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.strategy import NO_WORKER, RlWorker
from simcore.rl.nemo_rl import NEMO_RL
from simcore.rl.step.trainer import Trainer
from simcore.rl.trl.checks import KEYS as TRL_KEYS
from simcore.rl.verl.workers import VERL
from simcore.simulation.simulation import Simulation

__all__ = ["TRAINERS", "check_worker", "trainer_of"]

_DEFAULT: Final = "nemo_rl"
TRAINERS: Final[Mapping[str, tuple[Trainer, ...]]] = {_DEFAULT: NEMO_RL, "verl": VERL}
"""Trainers by the value of `rl.trainer`, a record for each kind of workers."""


def trainer_of(scenario: Scenario, worker: RlWorker = NO_WORKER) -> Trainer:
    """Trainer that the scenario asks for; NeMo RL without a block `rl`.

    `worker`: of the strategy, by which one of its kinds of workers is chosen.
    """
    found = TRAINERS[scenario.rl.trainer if scenario.rl is not None else _DEFAULT]
    return next((one for one in found if worker in one.workers), found[0])


def check_worker(scenario: Scenario, simulation: Simulation) -> None:
    """NotYet for frameworks that the trainer's workers do not use; IllegalLayout for what the workers refuse."""
    worker = simulation.framework.strategy.rl_worker
    trainer = trainer_of(scenario, worker)
    if worker not in trainer.workers:
        raise NotYet(Problem(scenario.where("framework"), f"not yet: {scenario.workload} under {scenario.framework} "
                             f"(served: {trainer.served})"))
    if scenario.generation is not None and scenario.generation.engine not in trainer.engines:
        raise NotYet(Problem(scenario.where("generation", "engine"), f"not yet: {scenario.generation.engine} beside "
                             f"this trainer (served: {', '.join(trainer.engines)})"))
    _check_keys(scenario, trainer)
    trainer.check(scenario, simulation)
    _check_training(scenario, simulation)


def _check_keys(scenario: Scenario, trainer: Trainer) -> None:
    """InputError for keys of another trainer that are set."""
    if scenario.rl is None:
        return
    usual = Rl(prompts=1, generations=1)
    own = dict.fromkeys(name for one in TRAINERS.values() if trainer in one for kind in one for name in kind.keys)
    others = (name for one in TRAINERS.values() for kind in one for name in kind.keys if name not in own)
    for name in (*others, *(name for name in TRL_KEYS if name not in own)):
        if getattr(scenario.rl, name) != getattr(usual, name):
            raise InputError(Problem(scenario.where("rl", name), f"{name}: changes nothing with trainer: "
                                     f"{scenario.rl.trainer}"))
    for name in own:
        if name not in trainer.keys and getattr(scenario.rl, name) != getattr(usual, name):
            raise NotYet(Problem(scenario.where("rl", name), f"not yet: {name} of this trainer under "
                                 f"{scenario.framework}"))


def _check_training(scenario: Scenario, simulation: Simulation) -> None:
    workload = scenario.workload
    if scenario.training.method == "qlora":
        at = scenario.where("training", "method")
        raise NotYet(Problem(at, f"not yet: {workload} over a base in few bits (NeMo RL 7ea279ab has no setting for "
                             "one, and the engine is sent weights of 16 bits)"))
    if simulation.framework.schedule.num_chunks > 1:
        at = scenario.where("training", "pipeline", "virtual_stages")
        raise NotYet(Problem(at, f"not yet: {workload} with virtual stages"))
    if not isinstance(scenario.training.lengths, str):
        raise NotYet(Problem(scenario.where("training", "lengths"), f"not yet: {workload} with drawn lengths"))
    if simulation.framework.offload is not None:
        at = scenario.where("training", "offload", "activations")
        raise NotYet(Problem(at, f"not yet: {workload} with what layers or modules save on the host"))
