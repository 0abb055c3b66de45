"""How long the host is busy with one kernel, by the library that issues it, and the shortest kernel there is."""

from __future__ import annotations

from typing import Any, Final

from simcore.calibration.bench import Bench
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Value

__all__ = ["module", "operator", "shortest"]

_CHAIN: Final = 64
"""Operators in a row: enough to see past the first call, few enough for the queue of launches to hold (1024)."""
_SIDE: Final = 128
"""Of the tensors: work that is nothing beside the call."""


def shortest(bench: Bench) -> Value:
    """Of kernels that follow each other, each of one number."""
    one = bench.random(1)

    def row() -> None:
        for _ in range(_CHAIN):
            one.neg()

    seconds = bench.stopwatch.seconds(row) / _CHAIN
    return _value(bench, seconds, f"torch.neg of one number, {_CHAIN} in a row")


def operator(bench: Bench) -> Value:
    """With one kernel of torch's own in eager training: a product and the two of its gradient, each in autograd."""
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
    """With one kernel of TransformerEngine's LayerNormLinear (two forward, three backward); NotMeasured without."""
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
