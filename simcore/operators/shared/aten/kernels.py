"""The output of one kernel, and operators with one input whose backward is a few kernels more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.recording.kernel_shape import shape_of
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["Grads", "Operand", "Saved", "needs_grad", "new", "pass_on", "unary"]

Operand = Tensor | Param
Grads = list[Tensor | None]
Saved = list[Tensor]
_PRODUCTS = (Kernel.GEMM, Kernel.FP8_GEMM, Kernel.GRAD_GEMM)


def needs_grad(x: Operand) -> bool:
    """True if backward makes a gradient for `x`: a trainable parameter, or a tensor that depends on one."""
    return x.trainable if isinstance(x, Param) else x.node is not None


def new(tape: Tape, shape: Sequence[int], dtype: str, name: str, moved: int = 0, kernel: Kernel = Kernel.ELEMENTWISE,
        flops: int = -1, product: int = 0) -> Tensor:
    """Output tensor of one kernel, which is recorded on the tape.

    `moved`: bytes that the kernel reads; it also writes the output. `flops`: -1 for one per element of the output.
    `product`: of a matrix product its packed shape (`kernel_shape.shape_of`), needed only if its output is not a matrix
    of (all other dimensions, last dimension); of attention `shape_of_heads`; of other kernels the number of torch
    operators. 0: none given.
    """
    out = tape.empty(shape, dtype, name)
    numel = out.numel
    if not product and kernel in _PRODUCTS:
        product = shape_of(math.prod(shape[:-1]), shape[-1])
    tape.compute(kernel, numel if flops < 0 else flops, moved + numel * dtype_bytes(dtype), product)
    return out


def unary(tape: Tape, x: Operand, name: str, save: str = "", *, dtype: str = "", steps: int = 1) -> Tensor:
    """Output of an operator on one tensor, in the shape of `x`; its backward is `steps` kernels.

    `save`: "input" or "output", the tensor that the node saves, "" for none. `dtype`: type of the output, "" for that
    of `x`. Results of all backward kernels but the last are temporary.
    """
    shape, in_dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [new(tape, shape, in_dtype, f"grad_{name}", 2 * x_bytes) for _ in range(steps)]
        return made[-1:]

    x_bytes = x.nbytes
    node = tape.node((x,), (x,) if save == "input" else (), backward)
    out = new(tape, shape, dtype or in_dtype, name, x_bytes)
    if save == "output":
        tape.save(node, out)
    out.node = node
    return out


def pass_on(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    """Backward function that returns the output's gradient, unchanged, as the gradient of the only input."""
    return [grads[0]]
