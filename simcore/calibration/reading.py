"""The reading of one timed kernel, with its FLOPs and bytes in the cost model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NotMeasured", "Reading", "Value", "reason_of"]


class NotMeasured(Exception):
    """Raised for a kernel or another part of a calibration that cannot be measured here; the message says why."""


def reason_of(error: Exception) -> str:
    """Text of an error, in one line: its type and at most 200 characters; of NotMeasured the message alone."""
    if isinstance(error, NotMeasured):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@dataclass(frozen=True, slots=True)
class Reading:
    """One timed kernel: `seconds` of one call, the median of repeats, and its work as the cost model counts it.

    `kernel`: one of `simcore.timing.kernel.KERNELS`; `by`: its library; `shape`: its sizes as text; `dtype`: format of
    its operands. `flops` counts two for a multiply-add, `moved` is bytes read plus written, `packed` the shape of a
    product or of attention as one integer (`simcore/recording/kernel_shape.py`), 0 for none: all as operators post
    them, so that a share that is fitted here has the meaning that the cost model gives it.
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
    """One measured number as a topology or efficiency file has it (`simcore.inputs.quantity.Quantity`).

    `value`: text with unit, such as "3.2 us"; `kind`: how it was found ("measured", "fitted"); `source`: text.
    """

    value: str
    kind: str
    source: str
