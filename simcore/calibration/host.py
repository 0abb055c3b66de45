"""Host time of one kernel, by the library that issues it, and the time of the shortest kernel."""

from __future__ import annotations

from typing import Any, Final

from simcore.calibration.bench import Bench
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Value

__all__ = ["module", "operator", "shortest"]

_CHAIN: Final = 64
"""Operators in a row: enough to amortise the first call, few enough for the queue of launches (1024)."""
_SIDE: Final = 128
"""Side of the tensors: small enough that the call dominates."""


def shortest(bench: Bench) -> Value:
    """Time of the shortest kernel, in us: mean of 64 consecutive kernels on one number each."""
    number = bench.random(1)

    def row() -> None:
        for _ in range(_CHAIN):
            number.neg()

    seconds = bench.stopwatch.seconds(row) / _CHAIN
    return _value(bench, seconds, f"torch.neg of one number, {_CHAIN} in a row")


def operator(bench: Bench) -> Value:
    """Host time of one eager kernel of torch in training, in us, with autograd.

    Mean over element-wise products and the two kernels of the gradient of each.
    """
    weights = [bench.random(_SIDE, grad=True) for _ in range(_CHAIN)]
    start = bench.random(_SIDE, grad=True)

    def step() -> None:
        x = start
        for weight in weights:
            x = x * weight
        bench.torch.autograd.grad(x, [start, *weights], x.detach())

    seconds = bench.stopwatch.host_seconds(step) / (3 * _CHAIN)
    return _value(bench, seconds, f"torch.mul of {_SIDE} numbers, {_CHAIN} in a row, forward and backward, a kernel")


def module(bench: Bench) -> Value:
    """Host time of one kernel of TransformerEngine's LayerNormLinear, in us: mean of 2 forward and 3 backward.

    NotMeasured without TransformerEngine or without a GPU.
    """
    engine = optional("transformer_engine.pytorch") if bench.machine.is_gpu else None
    if engine is None:
        raise NotMeasured("TransformerEngine is not there" if bench.machine.is_gpu else "no GPU")
    layers = [_norm_linear(bench, engine) for _ in range(_CHAIN // 8)]
    start = bench.random(_SIDE, _SIDE, grad=True)
    wanted = [start, *(weight for layer in layers for weight in layer.parameters())]

    def step() -> None:
        x = start
        for layer in layers:
            x = layer(x)
        bench.torch.autograd.grad(x, wanted, x.detach(), allow_unused=True)

    seconds = bench.stopwatch.host_seconds(step) / (5 * len(layers))
    return _value(bench, seconds, f"TransformerEngine's LayerNormLinear of {_SIDE}, forward and backward, a kernel")


def _norm_linear(bench: Bench, engine: Any) -> Any:
    return engine.LayerNormLinear(_SIDE, _SIDE, bias=False, normalization="RMSNorm", device="cuda",
                                  params_dtype=bench.torch.bfloat16)


def _value(bench: Bench, seconds: float, about: str) -> Value:
    return Value(f"{seconds * 1e6:.3g} us", "measured", f"{about}; {bench.machine.told}")
