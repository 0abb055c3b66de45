"""RMSNorm and LayerNorm as fused kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

from simcore.operators.shared.aten.kernels import Grads, Operand, Saved, needs_grad, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["layer_norm", "rms_norm"]


def rms_norm(tape: Tape, x: Tensor, weight: Param, name: str = "norm", *,
             arriving: Callable[[Tape, Tensor], Tensor] | None = None) -> Tensor:
    """`F.rms_norm` as one kernel (`_fused_rms_norm`): returns a new tensor with the shape and type of `x`.

    Autograd saves x, the weight and the fp32 inverse RMS of each row. torch 2.13 runs it in one piece on CUDA; the CPU
    build decomposes it. `arriving`: makes of the gradient of the output what backward reads, beside which it lives.
    """
    shape, dtype, w_shape, w_dtype, moved = x.shape, x.dtype, weight.shape, weight.dtype, x.nbytes
    x_needs, w_needs = needs_grad(x), needs_grad(weight)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _read = arriving(tape, grads[0]) if arriving and grads[0] else None
        to_x = (new(tape, shape, dtype, f"grad_{name}", 3 * moved, Kernel.NORM)
                if x_needs and tape.half != "weight" else None)
        if tape.half == "weight":  # the kernel of columns alone
            tape.compute(Kernel.NORM, math.prod(shape), 2 * moved)
        return [to_x, tape.empty(w_shape, w_dtype, "grad_weight") if w_needs and tape.half != "input" else None]

    node = tape.node((x, weight), (x, weight), backward)
    out = new(tape, shape, dtype, name, moved, Kernel.NORM)
    rstd = tape.empty((*shape[:-1], 1), "fp32", "rstd")
    tape.save(node, rstd)
    out.node = node
    return out


def layer_norm(tape: Tape, x: Tensor, weight: Operand, bias: Operand | None, name: str = "norm") -> Tensor:
    """`F.layer_norm` in x's own type: a new tensor with the shape of `x`.

    `bias` None for a norm without one. Autograd saves x, weight, bias, and the fp32 mean and inverse deviation of each
    row. torch 2.13 `csrc/autograd` native_layer_norm; its backward is a kernel over rows and one over columns.
    """
    shape, dtype, moved, w_shape, w_dtype = x.shape, x.dtype, x.nbytes, weight.shape, weight.dtype
    needs = [needs_grad(x), *(needs_grad(p) for p in (weight, bias) if p is not None)]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = new(tape, shape, dtype, f"grad_{name}", 3 * moved, Kernel.NORM) if needs[0] else None
        made = [tape.empty(w_shape, w_dtype, "grad_weight") if need else None for need in needs[1:]]
        if any(needs[1:]):
            tape.compute(Kernel.NORM, math.prod(shape), 2 * moved)
        return [to_x, *made]

    given = (x, weight, *((bias,) if bias else ()))
    node = tape.node(given, given, backward)
    out = new(tape, shape, dtype, name, moved, Kernel.NORM)
    statistics = [tape.empty((*shape[:-1], 1), "fp32", what) for what in ("mean", "rstd")]
    tape.save(node, *statistics)
    out.node = node
    return out
