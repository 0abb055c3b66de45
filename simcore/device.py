"""One GPU: its memory and its peaks, as the driver and the datasheet give them.

What kernels reach of the peaks is `simcore/efficiency.py`.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simcore.quantity import Bytes, FlopRate, Frozen, Rate, SmCount

__all__ = ["Device", "Memory", "Peaks"]


class Memory(Frozen):
    """Three readings of the same memory.

    `total` as nvidia-smi prints it; `usable` as the driver reports it to a program (PyTorch's total capacity; ECC and
    the driver keep the rest); `context` the part of `usable` that a process takes before its first tensor.
    """

    total: Bytes
    usable: Bytes
    context: Bytes

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.context.si < self.usable.si <= self.total.si:
            raise ValueError("expected context < usable <= total")
        return self


class Peaks(Frozen):
    """Dense peak per format; `fp32` is that of the vector units, which serve every kernel without `compute` share."""

    fp32: FlopRate
    tf32: FlopRate | None = None
    bf16: FlopRate
    fp16: FlopRate
    fp8: FlopRate | None = None
    fp4: FlopRate | None = None


class Device(Frozen):
    """One GPU."""

    name: str
    compute_capability: str = Field(pattern=r"^\d+\.\d+$")
    num_sms: SmCount
    memory: Memory
    memory_bandwidth: Rate
    peak: Peaks

    @property
    def architecture(self) -> int:
        """The major compute capability: 8 Ampere, 9 Hopper, 10 Blackwell."""
        return int(self.compute_capability.partition(".")[0])

    @property
    def memory_bytes(self) -> int:
        """Total as nvidia-smi prints it."""
        return int(self.memory.total)

    @property
    def usable_bytes(self) -> int:
        """What the driver reports to a program, before the CUDA context."""
        return int(self.memory.usable)

    @property
    def context_bytes(self) -> int:
        """CUDA context and runtime of one process, out of `usable_bytes`; NCCL is not in it."""
        return int(self.memory.context)
