"""Optimizer in backward: one step a parameter, gradients that never meet (peaks: tests/test_truth_fsdp2.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import small
from simcore.placement.framework import UpdateTime
from simcore.placement.optimizer_step import is_updated_in_backward, step_of
from simcore.placement.plan import Placed
from simcore.recording.rows import Step
from simcore.recording.tape import Kernel, Op, Param, Tape, Tensor
from simcore.results.report import Report
from simcore.simulate import simulate

NUMEL = 256 * 1000


def placed(dtype: str = "bf16") -> Placed:
    """The head of a tiny Llama on one of two ranks."""
    plan = small.plan_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", precision={"params": dtype})
    return next(p for p in plan.of_layer(plan.layers[-2]) if p.spec.component == "lm_head")


@pytest.mark.parametrize(("implementation", "held"), [("foreach", 1), ("for_loop", 2), ("fused", 0), ("torchao", 0)])
def test_a_step_alone_needs_its_own_temporaries(implementation: str, held: int) -> None:
    assert step_of(placed(), implementation) == Step(held * NUMEL, 12 * NUMEL // 2, 6 * NUMEL)
    assert step_of(placed("fp32"), implementation).held == 2 * held * NUMEL


def test_moments_that_are_backward() -> None:
    head = placed()
    assert not is_updated_in_backward(head)
    for moment in (UpdateTime.GRADIENT_READY, UpdateTime.AFTER_REDUCE):
        assert is_updated_in_backward(replace(head, policy=replace(head.policy, updated=moment)))


def test_a_gradient_dies_when_its_parameter_is_updated() -> None:
    """[4, 8] in bf16; the step's temporary is allocated and freed while the gradient is allocated."""
    tape = Tape({}, {})
    param = Param("weight", (4, 8), "bf16", trainable=True, step=Step(64, 12, 99))
    grad: Tensor | None = tape.empty((4, 8), "bf16", "grad_weight")
    assert grad is not None
    tape.give_param(param, grad)
    del grad
    names = {number: name for name, number in tape.slots.items()}
    rows = [(names[row[2]][1], row[3]) for row in tape.rows if row[0] in (Op.ALLOC, Op.FREE)]
    assert rows == [("unsharded_grad", 64), ("optim_temp", 64), ("optim_temp", -64), ("unsharded_grad", -64)]
    assert [row[3] for row in tape.rows if row[0] == Op.COMPUTE and row[2] == Kernel.OPTIMIZER] == [12]
    assert tape.release_grads() == ()


def ran(**options: Any) -> Report:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2, "ep": 2}, options=options))
    assert report.status == "ok", report.problems
    return report


@pytest.mark.parametrize("experts", ["fully_shard", "ignored"])
def test_no_gradient_outlives_backward(experts: str) -> None:
    """Neither of units nor of plain experts; the optimizer's own turn has nothing left to do."""
    late, early = (ran(experts=experts, optimizer_in_bwd=value).ranks[0] for value in (False, True))
    assert late.peak is not None
    assert early.peak is not None
    assert early.end_bytes is not None
    assert early.peak.by_phase["optimizer"] == early.end_bytes == late.end_bytes
    assert early.end_bytes < late.peak.by_phase["optimizer"]
    assert sum(c.grads_bytes for c in early.at_rest.values()) + early.grads_padding_bytes == 0


def test_the_first_steps_peak_is_bounded_by_the_others() -> None:
    """Its states are made one by one within backward."""
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, model="llama-tiny", options={"optimizer_in_bwd": True}))
    peak = report.ranks[0].peak
    assert peak is not None
    assert peak.first_step_bytes == peak.allocated_bytes


@pytest.mark.parametrize(("given", "status", "told"), [
    ({"microbatches": 2}, "illegal", "Gradient accumulation is not supported with optimizer in bwd"),
    ({"method": "qlora", "model": "llama-tiny"}, "error", "not yet: an optimizer inside backward of qlora's adapters"),
    ({"optimizer": {"name": "sgd"}}, "error", "of another name than adam or adamw")])
def test_refused(given: dict[str, Any], status: str, told: str) -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, options={"optimizer_in_bwd": True}, **given))
    assert report.status == status
    assert told in report.problems[0].message
