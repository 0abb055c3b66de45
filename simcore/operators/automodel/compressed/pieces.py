"""Operators of DeepSeek-V4's layers that others lack: parts of a tensor, what is written into them, a plain norm."""

from __future__ import annotations

import math

from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.shared.aten import Grads, Operand, Saved, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["as_operand", "copied_back", "held_number", "joined", "part", "plain_norm", "summed", "unbound", "write"]


def as_operand(tape: Tape, param: Param) -> Tensor:
    """A parameter that several operators read: its gradients are added up before it takes them."""
    return Tensor(None, param.shape, param.dtype, tape.node((param,), (), lambda tape, grads, saved: list(grads)))


def held_number(at: Modules, path: str, x: Tensor) -> Tensor:
    """Copy of the parameter of the module at `path` (`DeepseekV4FP32Parameter.forward`, clone).

    `x`: tensor that the module is given and does not read, so that no gradient ends its backward.
    """
    param = at.param(f"{path}.weight")

    def run(_x: Tensor) -> list[Tensor]:
        out = new(at.tape, param.shape, param.dtype, "clone", param.nbytes, Kernel.COPY)
        out.node = at.tape.node((param,), (), lambda tape, grads, saved: list(grads))
        return [out]

    (made,) = at.inside(path, x, run)
    return made


def part(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View of a part of `x`, of the given shape; its gradient is written into zeros of the whole."""
    whole, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, whole, dtype, "grad_part")])
    return Tensor(x.storage, shape, dtype, node)


def unbound(tape: Tape, param: Param) -> list[Tensor]:
    """Each element of a parameter of one dimension; their gradients are stacked."""
    shape, dtype = param.shape, param.dtype
    node = tape.node((param,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_numbers")])
    return [Tensor(None, (), dtype, node, place) for place in range(shape[0])]


def summed(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum of `x` over one dimension, of the given shape; its gradient is an expanded view."""
    whole = x.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        return [grad and grad.view(*whole)]

    node = tape.node((x,), (), backward)
    out = new(tape, shape, x.dtype, "sum", x.nbytes, flops=x.numel)
    out.node = node
    return out


def joined(tape: Tape, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`a` and `b` one behind the other, in a new tensor of the given shape; gradients are views of its gradient."""
    shapes = a.shape, b.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [grad.view(*one) for one in shapes]

    node = tape.node((a, b), (), backward)
    out = new(tape, shape, a.dtype, "cat", a.nbytes + b.nbytes)
    out.node = node
    return out


def copied_back(tape: Tape, x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """View of `x` under another shape and order; its gradient is copied back. `name`: of that copy."""
    whole, dtype, moved = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, whole, dtype, name, moved, Kernel.COPY)])
    return Tensor(x.storage, shape, dtype, node)


def write(tape: Tape, out: Tensor, x: Tensor) -> None:
    """Writes `x` into a part of `out`, which gets a node if `x` has one.

    torch 2.13 `csrc/autograd/functions/tensor.cpp`, CopySlices: the gradient of the whole is copied, then the part of
    it that `x` was, whose zeros go back into the copy; the first part's `out` has no gradient itself.
    """
    shape, dtype, moved, own, own_type = out.shape, out.dtype, out.nbytes, x.shape, x.dtype
    is_first, narrow = out.node is None, math.prod(x.shape)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        whole = new(tape, shape, dtype, "grad_written", moved, Kernel.COPY)
        made = new(tape, own, dtype, "grad_of_part", 2 * narrow, Kernel.COPY)
        if not is_first:
            _zeros = new(tape, own, dtype, "zeros")
            tape.compute(Kernel.COPY, narrow, 4 * narrow)
        if own_type != dtype:
            made = new(tape, own, own_type, "grad_of_part", made.nbytes, Kernel.COPY)
        return [None if is_first else whole, made]

    node = tape.node((out, x), (), backward)
    tape.compute(Kernel.COPY, x.numel, 2 * x.nbytes)
    out.node = node


def plain_norm(tape: Tape, x: Operand, *, strided: bool = False) -> Tensor:
    """RMSNorm of `x` without a weight (`_rms_norm_last_dim`), in its type: keeps x and an inverse root a row.

    `strided`: heads do not lie one behind the other, and the kernel copies them first (torch 2.13
    `aten/src/ATen/native/cuda/layer_norm_kernel.cu`, expect_contiguous; as it was known of LayerNorm, not run).
    """
    shape, dtype, moved = x.shape, x.dtype, x.nbytes

    def rows(tape: Tape) -> list[Tensor]:
        return [new(tape, shape, dtype, "heads", moved, Kernel.COPY)] if strided else []

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _rows = rows(tape)
        return [new(tape, shape, dtype, "grad_norm", 3 * moved, Kernel.NORM)]

    node = tape.node((x,), (x,), backward)
    copies = rows(tape)
    out = new(tape, shape, dtype, "norm", moved, Kernel.NORM, 4 * math.prod(shape))
    rstd = tape.empty((*shape[:-1], 1), "fp32", "rstd")
    copies.clear()
    tape.save(node, rstd)
    out.node = node
    return out


