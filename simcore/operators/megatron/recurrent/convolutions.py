"""Causal convolutions of each channel with SiLU, as Megatron's gated delta net calls them.

Core 0.16.1: causal-conv1d 1.6.1 (`causal_conv1d_interface.py`, `csrc/causal_conv1d.cpp`), over channels first. Main of
2026-08-22: flash-linear-attention's (fla-core 0.6.0, `modules/causal_conv1d/ops.py`), over the projection in place.
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["channels_first", "in_place"]

_CHUNK = 64
"""Tokens of which flash-linear-attention sums a part of the weight's gradient."""


def channels_first(c: Context, weight: Param, x: Tensor) -> Tensor:
    """Output of the convolution of `x` [tokens, channels]; a copy with channels first is made before it and kept.

    The gradient is copied into that order too.
    """
    rows, columns = x.shape
    ordered = c.new(rows, columns, "delta.qkv")
    c.elementwise(ordered, 2, Kernel.COPY)
    c.node(ordered, (x,), (), lambda tape, grads, saved: [grads[0]])

    def back(tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        copy = c.new(rows, columns, "grad_delta.conv_first")
        c.elementwise(copy, 2, Kernel.COPY)
        grad = c.new(rows, columns, "grad_delta.qkv")
        wide = tape.empty(weight.shape, "fp32", "grad_delta.conv_weight")
        _compute(c, grad, weight, passes=4)
        small = c.small_grad(weight)
        del wide, copy
        return [grad, small]

    out = c.new(rows, columns, "delta.conv")
    _compute(c, out, weight, passes=2)
    c.node(out, (ordered, weight), (ordered,), back)
    return out


def in_place(c: Context, weight: Param, x: Tensor) -> Tensor:
    """Output of the convolution of `x` [tokens, channels], a part of a wider tensor, all of which it keeps.

    Backward makes the convolution's output again, and the weight's gradient in parts of 64 tokens of a sequence.
    """
    rows, columns = x.shape
    parts = c.run.batch * -(-rows // c.run.batch // _CHUNK)

    def back(tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        again = c.new(rows, columns, "delta.conv_again")
        grad = c.new(rows, columns, "grad_delta.qkv")
        _compute(c, grad, weight, passes=5)
        partial = tape.empty((parts, *weight.shape), "fp32", "grad_delta.conv_parts")
        wide = tape.empty((weight.numel // c.run.cp,), "fp32", "grad_delta.conv_weight")
        c.tape.compute(Kernel.ELEMENTWISE, partial.numel, partial.nbytes + wide.nbytes, 1)
        small = c.small_grad(weight)
        del again, partial, wide
        return [grad, small]

    out = c.new(rows, columns, "delta.conv")
    _compute(c, out, weight, passes=2)
    c.node(out, (x, weight), (x,), back)
    return out


def _compute(c: Context, x: Tensor, weight: Param, *, passes: int) -> None:
    """One kernel: `passes` reads and writes of all of `x`, 2 FLOPs for each element and tap, twice that in backward."""
    taps = weight.shape[-1] * (1 if passes == 2 else 2)
    c.tape.compute(Kernel.CONV, 2 * taps * x.numel, passes * x.nbytes)
