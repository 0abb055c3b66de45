"""What a measurement works with: the machine, its stopwatch, the model's sizes, and how much of it is asked."""

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
    """(FLOPs, bytes moved) of a kernel's two passes, and their shapes if they have some."""

    forward: tuple[int, int]
    backward: tuple[int, int]
    packed: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. `rows` of products, `expert_rows` for each expert, `tokens` of everything else.

    `experts`: how many at most. Few rows are where memory bounds a product, many where arithmetic does.
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
"""On a CPU nothing but the path is tried."""


def extent_of(machine: Machine, *, quick: bool) -> Extent:
    """How much is measured on that machine."""
    if not machine.is_gpu:
        return _ON_CPU
    return _QUICK if quick else _WHOLE


@dataclass(frozen=True, slots=True)
class Bench:
    """`stopwatch` times what `random` tensors are put through."""

    machine: Machine
    sizes: Sizes
    extent: Extent
    stopwatch: Stopwatch

    @property
    def torch(self) -> Any:
        return self.machine.torch

    def random(self, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
        """Normal numbers, small enough that no sum over them overflows."""
        made = self.torch.randn(shape, device=self.machine.device, dtype=getattr(self.torch, dtype))
        return (made * 0.1).requires_grad_(grad)

    def forget(self) -> None:
        """Give what tensors have left back to the device."""
        if self.machine.is_gpu:
            self.torch.cuda.empty_cache()

    def read(self, kernel: str, by: str, shape: str, work: tuple[int, int], call: Call, dtype: str = "bf16",
             packed: int = 0) -> Reading:
        """Time one call; `work` is (FLOPs, bytes moved), `packed` its shape."""
        return Reading(kernel, by, shape, dtype, *work, self.stopwatch.seconds(call), packed)

    def read_both(self, kernel: str, by: str, shape: str, work: Work, call: Call, inputs: Sequence[Any],
                  dtype: str = "bf16") -> Iterator[Reading]:
        """Time one call, and its backward down to `inputs`, which need gradients.

        Each backward gets a forward of its own: TransformerEngine frees what it saved (`clear_tensor_data`).
        """
        yield self.read(kernel, by, shape, work.forward, call, dtype, work.packed[0])
        grad = self.torch.randn_like(call())
        seconds = self.stopwatch.seconds_after(call, lambda out: self.torch.autograd.grad(out, inputs, grad))
        yield Reading(kernel, by, f"{shape} backward", dtype, *work.backward, seconds, work.packed[1])
