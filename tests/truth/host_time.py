"""What the probes of host time share: Triton whose kernels do nothing, and the time of an operator of torch.

A host's time is told in operators: machines differ, the ratio of two things in Python on one of them much less.
"""

from __future__ import annotations

import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

__all__ = ["LAUNCHED", "Seconds", "Tuned", "module_of", "operator_s", "replace_triton", "timed"]

ROUNDS = 300
LAUNCHED: list[str] = []
"""Names of kernels that were asked for."""
Seconds = tuple[float, float]
"""Of forward, of backward."""


class Nothing:
    """A kernel that is launched and does nothing."""

    def __init__(self, function: types.FunctionType) -> None:
        self.name = function.__name__

    def __getitem__(self, _grid: object) -> object:
        return lambda *_, **__: LAUNCHED.append(self.name)


class Tuned:
    """The same behind an autotuner."""

    def __init__(self, kernel: Nothing) -> None:
        self.kernel, self.base_fn = kernel, kernel
        sizes = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "BLOCK_SIZE_H", "BLOCK_SIZE_CS",
                               "BLOCK_SIZE_DSTATE", "BLOCK_SIZE"), 32)
        self.best_config = types.SimpleNamespace(kwargs=sizes)
        self.configs = [self.best_config]

    def __getitem__(self, grid: object) -> object:
        return self.kernel[grid]


def module_of(name: str, **members: object) -> types.ModuleType:
    """A module of that name, from now on."""
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    return made


def replace_triton() -> None:
    """After torch was imported, which looks for the real one."""
    language = module_of("triton.language", dtype=type("dtype", (), {}),
                         **{name: mock.MagicMock() for name in ("constexpr", "math", "core")},
                         **{kind: object() for kind in ("float32", "bfloat16", "float16", "int32", "int64")})
    module_of("triton.language.standard", _log2=None)
    module_of("triton", language=language, jit=Nothing, cdiv=lambda a, b: -(-a // b), Config=lambda *_, **__: None,
              autotune=lambda **_: lambda kernel: kernel if isinstance(kernel, Tuned) else Tuned(kernel),
              heuristics=lambda *_: lambda kernel: kernel, next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
              __version__="3.5.0", runtime=mock.MagicMock())


def timed(forward: Callable[[Any], Any], out_of: Callable[[], Any], rounds: int = ROUNDS) -> Seconds:
    """Median seconds of `forward` on what `out_of` makes, and of its backward."""
    ahead, back = [], []
    for _ in range(rounds):
        given = out_of()
        start = time.perf_counter()
        out = forward(given)
        done = time.perf_counter()
        seed = torch.ones_like(out)
        again = time.perf_counter()
        out.backward(seed)
        ahead.append(done - start)
        back.append(time.perf_counter() - again)
    return statistics.median(ahead), statistics.median(back)


def operator_s() -> float:
    """By kernel of a product of torch: itself, two gradients, and the sum of the weight's."""
    weight, num = torch.randn(8, 8, requires_grad=True), 10

    def products(x: torch.Tensor) -> torch.Tensor:
        for _ in range(num):
            x = torch.nn.functional.linear(x, weight)
        return x

    return sum(timed(products, lambda: torch.randn(8, 8, requires_grad=True))) / (4 * num)
