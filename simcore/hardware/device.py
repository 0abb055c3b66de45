"""One GPU: its memory and its peaks, as the driver and the datasheet give them.

The shares of these peaks that kernels reach are in `simcore/hardware/efficiency.py`.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from simcore.hardware.power import LEAST, rate_share
from simcore.inputs.quantity import Bytes, FlopRate, Frozen, Power, Rate, SmCount
from simcore.units import format_bytes

__all__ = ["Cache", "Device", "Memory", "Peaks"]


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
    """Peak FLOP/s of one GPU by number format, without sparsity; None: it has no peak in the format.

    `fp32` is the peak of the vector units, which run every kernel without a share `compute` (`KernelShare`). The tensor
    cores take fp8 from compute capability 8.9 (Ada, Hopper) or CDNA 3 on, fp4 from 10.0 (Blackwell), bf16 and tf32 from
    8.0 (Ampere), fp16 from 7.0 (Volta).
    """

    fp32: FlopRate
    tf32: FlopRate | None = None
    bf16: FlopRate | None = None
    fp16: FlopRate | None = None
    fp8: FlopRate | None = None
    fp4: FlopRate | None = None


class Cache(Frozen):
    """Cache behind all multiprocessors (L2): its size, and the rate at which a copy inside it was measured."""

    size: Bytes
    bandwidth: Rate


class Device(Frozen):
    """One model of GPU. `compute_capability`: as PyTorch reports it, also for AMD's GPUs (gfx942 is 9.4).

    `cache`: of a GPU whose cache holds whole tensors of a short batch (Ada's), None: kernels are counted from memory.
    `power`: what the model may draw, None: unknown. `power_limit`: what it is allowed to draw (`nvidia-smi -pl`), None:
    `power`; it slows matrix units down, see `simcore/hardware/power.py`.
    """

    name: str
    compute_capability: str = Field(pattern=r"^\d+\.\d+$")
    num_sms: SmCount
    memory: Memory
    memory_bandwidth: Rate
    peak: Peaks
    cache: Cache | None = None
    power: Power | None = None
    power_limit: Power | None = None

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.power_limit is None:
            return self
        if self.power is None:
            raise ValueError("power_limit: the GPU needs power beside it, which a limit is a share of")
        share = self.power_limit.si / self.power.si
        if not LEAST <= share <= 1:
            raise ValueError(f"power_limit: {self.power_limit.value} is {share:.3f} of {self.power.value}; how fast a "
                             f"GPU is was measured from {LEAST} to 1")
        return self

    @property
    def rate_share(self) -> float:
        """Share of its rate that a matrix unit reaches under `power_limit`, at most 1."""
        if self.power is None or self.power_limit is None:
            return 1.0
        return rate_share(self.power_limit.si / self.power.si)

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats for which a peak is known, in the order of `Peaks`; always with fp32."""
        return tuple(name for name in Peaks.model_fields if getattr(self.peak, name) is not None)

    @property
    def products(self) -> FlopRate:
        """Peak FLOP/s of matrix products in bf16; in fp16 or else fp32 where the GPU has no bf16."""
        return self.peak.bf16 or self.peak.fp16 or self.peak.fp32

    @property
    def architecture(self) -> int:
        """Major number of the compute capability.

        7 is Volta and Turing, 8 Ampere and Ada, 9 Hopper, 10 and 12 Blackwell.
        """
        return int(self.compute_capability.partition(".")[0])

    @property
    def usable_bytes(self) -> int:
        """Memory in bytes of one GPU that the driver reports to a program; the CUDA context is a part of it."""
        return int(self.memory.usable)

    @property
    def context_bytes(self) -> int:
        """Bytes of one process's CUDA context and runtime, a part of `usable_bytes`; NCCL is not included."""
        return int(self.memory.context)
