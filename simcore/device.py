"""One GPU: memory, peaks, and what each class of kernel reaches of them."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simcore.quantity import Bytes, Duration, FlopRate, Frozen, Rate, Share, SmCount

__all__ = ["Device", "KernelShare", "Kernels", "LowPrecision", "Memory", "Peaks"]


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


class LowPrecision(Frozen):
    """What is left of a kernel's compute share when it runs in a low-precision format."""

    fp8: Share | None = None
    fp4: Share | None = None


class KernelShare(Frozen):
    """What a kernel reaches of the peak (None: it runs on the fp32 vector units) and of the memory bandwidth."""

    compute: Share | None = None
    memory: Share


class Kernels(Frozen):
    """The closed set of kernel classes; order is that of `simcore.cost.KERNELS`."""

    gemm: KernelShare
    grouped_gemm: KernelShare
    attention: KernelShare
    mamba_scan: KernelShare
    conv: KernelShare
    norm: KernelShare
    elementwise: KernelShare
    permute: KernelShare
    loss: KernelShare
    embedding: KernelShare
    optimizer: KernelShare
    copy_: KernelShare = Field(alias="copy")  # `copy` is a method of pydantic models


class Device(Frozen):
    """One GPU. `launch` is the least time a kernel takes, because the host must launch it."""

    name: str
    compute_capability: str = Field(pattern=r"^\d+\.\d+$")
    num_sms: SmCount
    memory: Memory
    memory_bandwidth: Rate
    peak: Peaks
    low_precision: LowPrecision = LowPrecision()
    kernels: Kernels
    launch: Duration

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
