"""Memory hooks of ZeRO-3 beside a reference model: [Note: a second engine].

[Note: a second engine] TRL 1.16.0 and 0.24.0 `models/utils.py` prepare_deepspeed: the reference is an engine of its own
with the same configuration, without an optimizer. Its stage 3 partitions parameters and gathers them by a trace of its
own, in which each pass is one forward (DeepSpeed 0.19.6 `runtime/zero/parameter_offload.py`, reset_step); small
parameters stay gathered in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from simcore.frameworks.common.optimizer_memory import post_rest, rest_postings
from simcore.frameworks.deepspeed.zero3_hooks import Zero3Hooks
from simcore.placement.job import Job
from simcore.placement.plan import Placed, PlacedKind, Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.layer import FUSED_PAIRS, REFERENCED, UNPAIRED

__all__ = ["Zero3PairHooks", "as_reference", "check_pairs", "zero3_hooks"]

_REFERENCE = "reference"


def check_pairs(job: Job, options: dict[str, Any], *, params_on_host: bool) -> None:
    """Refuses losses of preferences that ZeRO-3 is not modelled with: raises NotYet. `options`: of the framework."""
    training, at = job.scenario.training, "training.loss"
    if training.loss in FUSED_PAIRS:
        raise job.not_yet(at, f"{training.loss} under zero3, which gathers the head apart (TRL 1.16.0 trainer/utils.py "
                          "maybe_gather_lm_head_ctx)")
    if training.loss in UNPAIRED:
        raise job.not_yet(at, f"{training.loss} under zero3, whose engine passes twice in a step")
    if training.loss in REFERENCED and training.method != "full":
        raise job.not_yet(at, f"{training.loss} with adapters under zero3, whose engine passes twice in a step")
    if training.loss in REFERENCED and (params_on_host or options.get("zero_hpz_partition_size")):
        raise job.not_yet(at, f"{training.loss} under zero3 with parameters on the host or their second parts")


def _has_reference(plan: Plan) -> bool:
    """True if parameters of a reference model lie beside those that are trained."""
    return any(placed.spec.component == _REFERENCE for kind in plan.kinds for placed in kind)


@lru_cache(maxsize=16)
def _of_policy(plan: Plan) -> Plan:
    """The plan without the reference model's parameters, which come last in each layer."""
    return _with(plan, lambda placed: None if placed.spec.component == _REFERENCE else placed)


@lru_cache(maxsize=16)
def _parts_of_reference(plan: Plan) -> Plan:
    """The plan with the reference model's parameters alone, under their own names."""
    return _with(plan, lambda placed: placed if placed.spec.component == _REFERENCE else None)


@lru_cache(maxsize=16)
def as_reference(plan: Plan) -> Plan:
    """The trained model's plan with all parameters frozen: the reference's, which has the same layers."""
    return _with(_of_policy(plan), lambda placed: replace(placed, spec=replace(placed.spec, trainable=False)))


def _with(plan: Plan, each: Callable[[Placed], Placed | None]) -> Plan:
    return replace(plan, kinds=tuple(PlacedKind(found for placed in kind if (found := each(placed)) is not None)
                                     for kind in plan.kinds))


class Zero3PairHooks(Zero3Hooks):
    """Writer of the memory events of a step under ZeRO-3 of a model beside its reference."""

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        super().__init__(_of_policy(plan), tables, builder)
        self.parts, self.given = _parts_of_reference(plan), Zero3Hooks(as_reference(plan), tables, builder)

    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps, of both models."""
        super().post_persistent()
        post_rest(self.parts, self.tables, self.out, rest_postings)
        self.out.alloc(self.first, self.slots[3], sum(self.given._persistent().values()))

    def of_reference(self) -> Zero3Hooks:
        """Hooks of the reference's engine, at the beginning of its pass."""
        self.given.at = self.given.cursor = 0
        self.given.promised.clear()
        return self.given


def zero3_hooks(plan: Plan, tables: Tables, builder: Builder) -> Zero3Hooks:
    """New hooks for the rank of `plan`, of one model or of two."""
    return (Zero3PairHooks if _has_reference(plan) else Zero3Hooks)(plan, tables, builder)
