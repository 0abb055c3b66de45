"""One GPU: its memory and its peaks, as the driver and the datasheet give them.

The shares of these peaks that kernels reach are in `simcore/hardware/efficiency.py`.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simcore.inputs.quantity import Bytes, FlopRate, Frozen, Power, Rate, SmCount
from simcore.units import format_bytes

__all__ = ["Device", "Memory", "Peaks"]


class Memory(Frozen):
    """Three sizes of one GPU's memory.

    `total` as nvidia-smi prints it; `usable` as the driver reports it to a program (PyTorch's total capacity; ECC and
    the driver keep the rest); `context` the part of `usable` that a process takes before its first tensor.
    """

    total: Bytes
    usable: Bytes
    context: Bytes

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.context.si < self.usable.si <= self.total.si:
            got = ", ".join(format_bytes(part.si) for part in (self.context, self.usable, self.total))
            raise ValueError(f"expected context < usable <= total, got {got} (GB is 1e9 bytes, GiB is 2**30)")
        return self


class Peaks(Frozen):
    """Dense peak per format; `fp32` is that of the vector units, which serve every kernel without `compute` share.

    A format without a peak is one that the tensor cores do not take: fp8 needs compute capability 8.9 (Ada, Hopper) or
    CDNA 3, fp4 10.0 (Blackwell); bf16 and tf32 8.0 (Ampere), fp16 7.0 (Volta).
    """

    fp32: FlopRate
    tf32: FlopRate | None = None
    bf16: FlopRate | None = None
    fp16: FlopRate | None = None
    fp8: FlopRate | None = None
    fp4: FlopRate | None = None


class Device(Frozen):
    """One GPU. `compute_capability`: as PyTorch reports it, also for AMD's GPUs (gfx942 is 9.4)."""

    name: str
    compute_capability: str = Field(pattern=r"^\d+\.\d+$")
    num_sms: SmCount
    memory: Memory
    memory_bandwidth: Rate
    peak: Peaks
    power: Power | None = None

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats that the tensor cores take, those with a peak."""
        return tuple(name for name in Peaks.model_fields if getattr(self.peak, name) is not None)

    @property
    def products(self) -> FlopRate:
        """Peak of matrix products in bf16, else in fp16, else in fp32."""
        return self.peak.bf16 or self.peak.fp16 or self.peak.fp32

    @property
    def architecture(self) -> int:
        """Major compute capability: 7 Volta and Turing, 8 Ampere and Ada, 9 Hopper, 10 and 12 Blackwell."""
        return int(self.compute_capability.partition(".")[0])

    @property
    def memory_bytes(self) -> int:
        """Total memory in bytes, as nvidia-smi prints it."""
        return int(self.memory.total)

    @property
    def usable_bytes(self) -> int:
        """Memory in bytes that the driver reports to a program, before the CUDA context."""
        return int(self.memory.usable)

    @property
    def context_bytes(self) -> int:
        """Bytes of one process's CUDA context and runtime, a part of `usable_bytes`; NCCL is not included."""
        return int(self.memory.context)
