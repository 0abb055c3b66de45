"""Kernels that implementations of DoRA share: norms of rows, magnitudes over them, and the sum that they scale.

PEFT 0.21.2 `tuners/lora/dora.py`, DoraLinearLayer.forward; nemo-automodel 0.7.0 `components/_peft/lora.py`,
LinearLoRA.forward. Norms take no gradient.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.aten import Operand
from simcore.recording.tape import Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["norms", "ratio", "scaled_sum", "without_bias"]


def norms(tape: Tape, weight: Operand, both: Tensor, label: str) -> Tensor:
    """Norm of every row of `weight + scaling * both`, both [n, k]: a new tensor [n] in the type of `weight`."""
    scaled = aten.new(tape, weight.shape, both.dtype, f"{label}.delta", both.nbytes)
    total = aten.new(tape, weight.shape, weight.dtype, f"{label}.adapted", weight.nbytes + scaled.nbytes)
    del scaled
    return aten.new(tape, weight.shape[:1], weight.dtype, f"{label}.norm", total.nbytes, flops=2 * total.numel)


def ratio(tape: Tape, magnitude: Operand, norm: Tensor, label: str) -> Tensor:
    """`magnitude / norm` of two vectors [n]: a new tensor [n] in the wider of their types. Autograd saves the norm."""
    shape, dtype = magnitude.shape, max((magnitude.dtype, norm.dtype), key=dtype_bytes)
    node = tape.node((magnitude,), (norm,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, f"grad_{label}.magnitude")], reduce_to=(shape,), cast_to=(magnitude.dtype,))
    out = aten.new(tape, shape, dtype, f"{label}.ratio", magnitude.nbytes + norm.nbytes)
    out.node = node
    return out


def without_bias(tape: Tape, base: Tensor, bias: Param, label: str) -> Tensor:
    """`base - bias` of a linear's output [..., n] and its frozen bias [n]: a new tensor in the wider of their types."""
    node = tape.node((base,), (), lambda tape, grads, saved: [grads[0]], reduce_to=(base.shape,), cast_to=(base.dtype,))
    out = aten.new(tape, base.shape, max((base.dtype, bias.dtype), key=dtype_bytes), f"{label}.without_bias",
                   base.nbytes)
    out.node = node
    return out


def scaled_sum(tape: Tape, scale: Tensor, base: Tensor, part: Tensor, label: str) -> Tensor:
    """`(scale - 1) * base + scale * part * scaling`: a new tensor in the shape of `base` [..., n].

    `scale`: one number a column, [1, n]. Autograd saves `base` and `part`.
    """
    return aten.add(tape, aten.mul(tape, aten.add_scalar(tape, scale), base, f"{label}.base_scaled"),
                    aten.mul_scalar(tape, aten.mul(tape, scale, part, f"{label}.lora_scaled")), f"{label}.dora")
