"""Sums, means and softmax over a dimension."""

from __future__ import annotations

from simcore.operators.shared.aten.kernels import Grads, Saved, new, unary
from simcore.recording.tape import Tape, Tensor

__all__ = ["log_softmax", "mean", "softmax", "sum_last", "sum_of"]


def log_softmax(tape: Tape, x: Tensor) -> Tensor:
    """Log-softmax over the last dimension: a new tensor with the shape and type of `x`.

    Autograd saves the output.
    """
    return unary(tape, x, "log_softmax", "output")


def mean(tape: Tape, x: Tensor) -> Tensor:
    """`x.mean(-1, keepdim=True)`: the last dimension becomes 1.

    The gradient is expanded to the shape of `x` and divided.
    """
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_mean")])
    out = new(tape, (*shape[:-1], 1), dtype, "mean", x.nbytes, flops=x.numel)
    out.node = node
    return out


def sum_of(tape: Tape, x: Tensor, count: int, out_dtype: str = "") -> Tensor:
    """`x.view(-1, count, k).sum(1)`: sums each `count` consecutive rows of `x` [r, k] into [r / count, k].

    Backward copies the expanded gradient, because of the view. `out_dtype`: type of the sum, "" for x's.
    """
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_sum")])
    out = new(tape, (shape[0] // count, *shape[1:]), out_dtype or dtype, "sum", x.nbytes, flops=x.numel)
    out.node = node
    return out


def sum_last(tape: Tape, x: Tensor, *, keepdim: bool = False, dtype: str = "") -> Tensor:
    """`x.sum(-1)`, in a new tensor; with `keepdim` the last dimension stays as 1.

    `dtype`: type of the sum, "" for x's. The gradient is an expanded view, of another type a cast of it.
    """
    shape, cast_to = x.shape, (x.dtype,)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        return [grad and grad.view(*shape)]

    node = tape.node((x,), (), backward, reduce_to=(shape,), cast_to=cast_to)
    out = new(tape, (*shape[:-1], 1) if keepdim else shape[:-1], dtype or x.dtype, "sum", x.nbytes, flops=x.numel)
    out.node = node
    return out


def softmax(tape: Tape, x: Tensor, *, dtype: str = "") -> Tensor:
    """Softmax over the last dimension: a new tensor with the shape of `x`, and its type if `dtype` is "".

    Autograd saves the output.
    """
    return unary(tape, x, "softmax", "output", dtype=dtype)
