"""The reading of one timed kernel, with its FLOPs and bytes in the cost model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NotMeasured", "Reading", "Value", "reason_of"]


class NotMeasured(Exception):
    """Raised for a kernel that this machine or its libraries cannot run; the message says why."""


def reason_of(error: Exception) -> str:
    """Text of an error, in one line."""
    if isinstance(error, NotMeasured):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A median of repeats. `kernel` is one of `simcore.timing.kernel.KERNELS`.

    `by` names its library, `shape` its sizes.

    `flops` counts two for a multiply-add, `moved` is bytes read plus written, `packed` the shape of a product or of
    attention (`simcore/recording/kernel_shape.py`): all as operators post them, so that a share that is fitted here
    has the meaning that the cost model gives it.
    """

    kernel: str
    by: str
    shape: str
    dtype: str
    flops: int
    moved: int
    seconds: float
    packed: int = 0


@dataclass(frozen=True, slots=True)
class Value:
    """A number as a topology or efficiency file has it (`simcore.inputs.quantity.Quantity`)."""

    value: str
    kind: str
    source: str
