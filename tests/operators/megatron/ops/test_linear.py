"""Weight gradients of linears."""

from __future__ import annotations

import pytest

from operators.megatron.kinds import ATTENTION, GPT, MAMBA, NANO, T, run_of
from simcore.operators.megatron.implementation import idle_gradients, record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Op, Param


def test_weight_gradients_that_no_gemm_adds_up_are_made() -> None:
    apart = run_of(GPT, options=MegatronOptions(gradient_accumulation_fusion=False))
    assert idle_gradients(GPT, apart) == frozenset() != idle_gradients(GPT, run_of(GPT))
    born: dict[tuple[str, str], int] = {}
    tape = record(GPT, apart, born, {})
    slots = {slot for op, _, slot, *_ in tape.backward.rows if op == Op.ALLOC}
    made = {name for (name, _), slot in born.items() if slot in slots}
    assert {f"{name}.weight.grad" for name in ("mlp.linear_fc1", "mlp.linear_fc2", "self_attention.linear_qkv",
                                               "self_attention.linear_proj")} <= made


def test_idle_gradients_are_one_for_each_shape() -> None:
    shapes = {s for kind, _ in NANO for s in idle_gradients(kind, run_of(kind, ep=8))}
    assert len(shapes) == 8
    assert sum(2 * a * b for (a, b), _ in shapes) == pytest.approx(0.867e9, rel=1e-3)
    assert not idle_gradients(MAMBA, run_of(MAMBA, frozen=True))


def test_gradients_of_other_frameworks_stay() -> None:
    run = run_of(ATTENTION)
    params = {n: Param(n, p.shape, p.dtype, trainable=True) for n, p in run.params.items()}
    tape = record(ATTENTION, LayerWorkload(1, T, "bf16", params), {}, {})
    assert sorted((p.name, size) for p, _, size in tape.grads) == sorted((n, 2 * p.numel) for n, p in params.items())
