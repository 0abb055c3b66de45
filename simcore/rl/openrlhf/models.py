"""Models of a step of OpenRLHF on a class of ranks: policy, reference model, critic, reward model.

[Note: processes]
OpenRLHF 0.11.0 `trainer/ray/launcher.py` RayActorGroup, `cli/train_ppo_ray.py`: each model is an actor of Ray, a
process with an engine of DeepSpeed, and so with a context, communicators and workspaces of its own; models that share
GPUs have a part of each. Policy and critic are trained with the same configuration (get_ds_train_config). The others
have no optimizer: under stage 3 they are sharded as the policy is, else each rank has a whole model (stage 0,
get_ds_eval_config). All are read in the format of products.

[Note: passes]
Models make log-probabilities, values and rewards under torch.no_grad(), `rollout.micro_batch_size` sequences at a time,
which the CPU has before and behind (`launcher.py` execute_batch, forward).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.inputs.scenario import Scenario
from simcore.results.report import Report, TrafficRow
from simcore.rl.openrlhf.sleep import Sleep, sleep_of
from simcore.rl.step.forward import Passes, passes
from simcore.rl.step.policy import hosted_bytes, on_same_gpus
from simcore.rl.trl.policy import Held, held_of, summons_of
from simcore.simulation.simulation import Simulation, placed_simulation
from simcore.simulation.step import Request, training_step

__all__ = ["Model", "Trained", "on_ranks_of", "scoring", "trained", "without_optimizer"]

_READ: Final = ("sharded_param", "unsharded_param", "buffer", "workspace")
"""Categories of an engine without an optimizer."""
_LOOSE: Final = "fragmentation"
_WIDE_LOGITS: Final = 1.0
"""Tensors in fp32 of the logits' size beside those of the head: `models/actor.py` forward."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model in a process of its own: bytes by category on a rank, and times in ns of one step.

    `rest`: on the device awake; `passing`, `training`: in addition at the highest moment of a pass, of an optimizer
    step. `sleep`: what leaves between trainings, None for what is always awake; `hosted`: states that rest on the host.
    """

    rest: Mapping[str, int]
    outside: Mapping[str, int]
    passing: Mapping[str, int]
    passing_ns: int
    training: Mapping[str, int]
    training_ns: int
    sleep: Sleep | None = None
    hosted: int = 0

    @property
    def highest(self) -> int:
        """Bytes at the highest moment of a training step or a pass."""
        most = max(sum(self.passing.values()), sum(self.training.values()))
        return sum(self.rest.values()) + sum(self.outside.values()) + most


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that is trained: report of its step, simulation of its passes, and the model on each class of ranks."""

    report: Report
    simulation: Simulation
    forward: Passes
    models: tuple[Model, ...]

    def passed(self) -> list[tuple[TrafficRow, ...]]:
        """Rows of traffic of its passes, for each class of ranks."""
        return self.forward.traffic(self.simulation, self.simulation.job.scenario.num_microbatches)


def trained(training: Scenario, passing: Scenario, steps: int, request: Request, *, sleeps: bool) -> Trained:
    """Simulates a model that is trained. `training`, `passing`: scenarios of a step, and of passes over all sequences.

    `steps`: optimizer steps of one step of the report; `sleeps`: its states leave the device between them.
    """
    report, simulation = training_step(training, request), placed_simulation(passing)
    forward = _passes(simulation, request)
    step_ns = round((report.time.step_s if report.time else 0.0) * 1e9)
    held = held_of(report, forward, simulation, (_passes_ns(forward, simulation), steps * step_ns))
    plans, kind = placed_simulation(training).plans, summons_of(training).sleeps if sleeps else ""
    models = tuple(_model(one, sum(hosted_bytes(plan).values()), kind)
                   for one, plan in zip(held, plans, strict=True))
    return Trained(report, simulation, forward, models)


def _passes(simulation: Simulation, request: Request) -> Passes:
    is_policy = simulation.job.graph.architecture.vocab > 1
    return passes(simulation, timed=request.timed, in_place=True, beside=_WIDE_LOGITS if is_policy else 0, trains=True)


def _passes_ns(forward: Passes, simulation: Simulation) -> int:
    return forward.total_ns(simulation.job.scenario.num_microbatches)


def _model(held: Held, hosted: int, kind: str) -> Model:
    sleep = sleep_of(held.rest, kind) if kind else None
    return Model(held.rest, held.outside, held.passing, held.passing_ns, held.training, held.training_ns, sleep, hosted)


def without_optimizer(model: Model) -> Model:
    """A second model as that one which is never trained, such as a reference model: see [Note: processes]."""
    rest = {name: size for name, size in model.rest.items() if name in _READ}
    return replace(model, rest=rest, training={}, training_ns=0, sleep=None, hosted=0)


def scoring(passing: Scenario, outside: Sequence[Mapping[str, int]], request: Request
            ) -> tuple[Simulation, list[Model], list[tuple[TrafficRow, ...]]]:
    """Simulates a model that only passes, on each class of its ranks: simulation, models, and rows of its traffic.

    `outside`: bytes outside the allocator, of a process of each class.
    """
    simulation = placed_simulation(passing)
    forward = _passes(simulation, request)
    ns, models = _passes_ns(forward, simulation), list[Model]()
    for number, (rest, above) in enumerate(zip(forward.rest, forward.above, strict=True)):
        loose = simulation.needed(sum(rest.values()) + sum(above.values())).middle - sum(rest.values()) - sum(
            above.values())
        read = {name: size for name, size in rest.items() if name in _READ}
        models.append(Model(read, outside[min(number, len(outside) - 1)], {**above, _LOOSE: loose}, ns, {}, 0))
    return simulation, models, forward.traffic(simulation, passing.num_microbatches)


def on_ranks_of(policy: Simulation, own: Simulation, models: Sequence[Model],
                sent: Sequence[tuple[TrafficRow, ...]]) -> list[tuple[Model, tuple[TrafficRow, ...]]]:
    """For each class of the policy's ranks the other model there, and what it sends; of several classes the fullest."""
    return on_same_gpus(list(zip(models, sent, strict=True)), own, policy, lambda one: one[0].highest)
