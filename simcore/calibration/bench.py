"""The inputs of a measurement: the machine, its stopwatch, the model's sizes, and the range of sizes to measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simcore.calibration.machine import Machine
from simcore.calibration.reading import Reading
from simcore.calibration.sizes import Sizes
from simcore.calibration.stopwatch import Call, Stopwatch

__all__ = ["Bench", "Extent", "Work", "extent_of"]


class Work(NamedTuple):
    """Work of one kernel: (FLOPs, bytes read and written) of its forward and of its backward.

    `packed`: shape of the forward and of the backward kernel, each as one integer by `recording/kernel_shape.py`, 0 for
    none.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]
    packed: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes at which one calibration measures: few rows, where memory bounds a product, to many.

    `rows`: rows of dense products; `expert_rows`: rows for each expert; `tokens`: tokens of everything else; `experts`:
    largest number of experts in a grouped product. `warmup`, `repeats`: calls of each reading that are not timed, and
    that are.
    """

    rows: tuple[int, ...]
    expert_rows: tuple[int, ...]
    tokens: tuple[int, ...]
    experts: int
    warmup: int
    repeats: int


_WHOLE = Extent((16, 64, 256, 1024, 4096, 8192, 16384), (8, 32, 128, 512, 2048), (1024, 2048, 4096, 8192), 16, 5, 20)
_QUICK = Extent((64, 512, 4096), (32, 512), (1024, 4096), 16, 3, 7)
_ON_CPU = Extent((4, 32, 256), (4, 32), (256, 512), 4, 1, 5)
"""Extent on a CPU, which only tests the code path."""


def extent_of(machine: Machine, *, quick: bool) -> Extent:
    """Sizes to measure on `machine`: all, with `quick` fewer, on a CPU few and small (to test the code)."""
    if not machine.is_gpu:
        return _ON_CPU
    return _QUICK if quick else _WHOLE


@dataclass(frozen=True, slots=True)
class Bench:
    """One measurement's inputs: the machine, sizes of a model's kernels, the range of sizes, a timer."""

    machine: Machine
    sizes: Sizes
    extent: Extent
    stopwatch: Stopwatch

    @property
    def torch(self) -> Any:
        """The module torch."""
        return self.machine.torch

    def random(self, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
        """Tensor of normal numbers times 0.1 on the measured device, so small that no sum over them overflows.

        `shape`: its dimensions; `dtype`: torch's name; `grad`: it requires a gradient.
        """
        numbers = self.torch.randn(shape, device=self.machine.device, dtype=getattr(self.torch, dtype))
        return (numbers * 0.1).requires_grad_(grad)

    def forget(self) -> None:
        """Returns memory that torch's allocator caches to the GPU; nothing on a CPU."""
        if self.machine.is_gpu:
            self.torch.cuda.empty_cache()

    def read(self, kernel: str, by: str, shape: str, work: tuple[int, int], call: Call, dtype: str = "bf16",
             packed: int = 0) -> Reading:
        """Reading of `call`: its median time in seconds, with this description.

        `kernel`: its kind in the cost model; `by`: its library; `shape`: its sizes as text; `work`: (FLOPs, bytes read
        plus written) of one call; `dtype`: of its operands; `packed`: its shape as one integer, 0 for none.
        """
        return Reading(kernel, by, shape, dtype, *work, self.stopwatch.seconds(call), packed)

    def read_both(self, kernel: str, by: str, shape: str, work: Work, call: Call, inputs: Sequence[Any],
                  dtype: str = "bf16") -> Iterator[Reading]:
        """Two readings: of `call` (the forward), and of its backward alone, down to the gradients of `inputs`.

        `kernel`, `by`, `shape`, `dtype` as for `read`; the second's shape ends with " backward". `work`: FLOPs and
        bytes of both. Each backward follows a new forward, because TransformerEngine frees saved tensors
        (`clear_tensor_data`).
        """
        yield self.read(kernel, by, shape, work.forward, call, dtype, work.packed[0])
        grad = self.torch.randn_like(call())
        seconds = self.stopwatch.seconds_after(call, lambda out: self.torch.autograd.grad(out, inputs, grad))
        yield Reading(kernel, by, f"{shape} backward", dtype, *work.backward, seconds, work.packed[1])
