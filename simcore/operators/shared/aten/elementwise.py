"""Elementwise operators: casts, activations, sums and products with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from simcore.operators.shared.aten.kernels import Grads, Operand, Saved, needs_grad, new, pass_on, unary
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["add", "add_", "add_scalar", "cast", "clamp", "div", "div_", "dropout", "exp", "gelu", "masked_fill", "mul",
           "mul_", "mul_rows", "mul_scalar", "neg", "relu", "rsqrt", "select", "sigmoid", "silu", "softplus", "sqrt",
           "square", "sub", "tanh"]


@overload
def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor: ...


@overload
def cast(tape: Tape, x: Param, dtype: str) -> Operand: ...


def cast(tape: Tape, x: Operand, dtype: str) -> Operand:
    """`x.to(dtype)`: a new tensor with the shape of `x`; `x` itself if it already has that type."""
    return x if x.dtype == dtype else unary(tape, x, f"to_{dtype}", dtype=dtype)


def neg(tape: Tape, x: Tensor) -> Tensor:
    """Records `-x`; returns a new tensor with the shape and type of `x`."""
    return unary(tape, x, "neg")


def exp(tape: Tape, x: Operand) -> Tensor:
    """Records `x.exp()`; returns a new tensor with the shape and type of `x`. Autograd saves the output."""
    return unary(tape, x, "exp", "output")


def silu(tape: Tape, x: Tensor) -> Tensor:
    """Records SiLU of `x`; returns a new tensor with the shape and type of `x`. Autograd saves the input."""
    return unary(tape, x, "silu", "input")


def relu(tape: Tape, x: Tensor) -> Tensor:
    """Records ReLU of `x`; returns a new tensor with the shape and type of `x`. Autograd saves the output."""
    return unary(tape, x, "relu", "output")


def tanh(tape: Tape, x: Tensor) -> Tensor:
    """Records tanh of `x`; returns a new tensor with the shape and type of `x`. Autograd saves the output."""
    return unary(tape, x, "tanh", "output")


def sigmoid(tape: Tape, x: Tensor) -> Tensor:
    """Records sigmoid of `x`; returns a new tensor with the shape and type of `x`.

    Autograd saves the output.
    """
    return unary(tape, x, "sigmoid", "output")


def square(tape: Tape, x: Operand) -> Tensor:
    """Records `x.pow(2)`; returns a new tensor with the shape and type of `x`. Autograd saves the input.

    The gradient, `grad * (2 * x.pow(1))`, takes three kernels.
    """
    return unary(tape, x, "pow", "input", steps=3)


def rsqrt(tape: Tape, x: Tensor) -> Tensor:
    """Records `x.rsqrt()`; returns a new tensor with the shape and type of `x`. Autograd saves the output.

    The gradient, `-0.5 * grad * result.pow(3)`, takes three kernels.
    """
    return unary(tape, x, "rsqrt", "output", steps=3)


def sqrt(tape: Tape, x: Tensor) -> Tensor:
    """Records `x.sqrt()`; returns a new tensor with the shape and type of `x`. Autograd saves the output.

    The gradient, `grad / (2 * result)`, takes two kernels.
    """
    return unary(tape, x, "sqrt", "output", steps=2)


def gelu(tape: Tape, x: Tensor) -> Tensor:
    """Records GELU of `x`; returns a new tensor with the shape and type of `x`. Autograd saves the input."""
    return unary(tape, x, "gelu", "input")


def softplus(tape: Tape, x: Tensor) -> Tensor:
    """Records softplus of `x`; returns a new tensor with the shape and type of `x`. Autograd saves the input."""
    return unary(tape, x, "softplus", "input")


def dropout(tape: Tape, x: Tensor) -> Tensor:
    """Records `F.dropout(x)` with a probability above 0; returns a new tensor with the shape and type of `x`.

    One kernel (`native_dropout`), which also writes the mask that autograd saves, a byte an element.
    """
    shape, dtype, moved = x.shape, x.dtype, x.nbytes + x.numel
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_dropout", moved)])
    out = new(tape, shape, dtype, "dropout", moved)
    mask = tape.empty(shape, "uint8", "dropout_mask")
    tape.save(node, mask)
    out.node = node
    return out


def mul_scalar(tape: Tape, x: Tensor) -> Tensor:
    """Records `x * number`; returns a new tensor with the shape and type of `x`.

    Nothing is saved, because wrapped numbers do not pass through saved-tensor hooks.
    """
    return unary(tape, x, "scale")


def add_scalar(tape: Tape, x: Operand, *, dtype: str = "") -> Tensor:
    """Records `x + number`; returns a new tensor with the shape of `x`, and its type if `dtype` is "".

    `dtype`: type of a small tensor that is added instead, wider than x's. Nothing is saved; the output's gradient,
    cast to x's type, is the input's.
    """
    node = tape.node((x,), (), pass_on, reduce_to=(x.shape,), cast_to=(x.dtype,))
    out = new(tape, x.shape, dtype or x.dtype, "add", x.nbytes)
    out.node = node
    return out


def add(tape: Tape, a: Tensor, b: Operand, name: str = "add") -> Tensor:
    """Records `a + b`, where `b` has a's shape or broadcasts to it; returns the sum in the wider of their types.

    Both inputs get the output's gradient itself, summed to their shape and cast to their type. `name`: name of the
    output's storage.
    """
    node = tape.node((a, b), (), _pass_twice, reduce_to=(a.shape, b.shape), cast_to=(a.dtype, b.dtype))
    out = new(tape, a.shape, max((a.dtype, b.dtype), key=dtype_bytes), name, a.nbytes + b.nbytes)
    out.node = node
    return out


def add_(tape: Tape, a: Tensor, b: Tensor) -> None:
    """Records `a += b` in place, for tensors of one shape and type; both get the output's gradient itself."""
    tape.compute(Kernel.ELEMENTWISE, a.numel, 2 * a.nbytes + b.nbytes)
    a.node = tape.node((a, b), (), _pass_twice)


def clamp(tape: Tape, x: Tensor, bounds: int) -> Tensor:
    """Records `x.clamp(...)`; returns a new tensor with the shape and type of `x`. Autograd saves `x`.

    `bounds`: number of bounds, 1 or 2. Backward makes a mask for each bound, and keeps the gradient where x is within
    them (`clamp_backward`).
    """
    shape, dtype, moved = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _zero = tape.empty((), dtype, "zero")
        inside = [new(tape, shape, "uint8", "within_bound", moved) for _ in range(bounds)]
        return [new(tape, shape, dtype, "grad_clamp", inside[0].nbytes + moved)]

    node = tape.node((x,), (x,), backward)
    out = new(tape, shape, dtype, "clamp", moved)
    out.node = node
    return out


def sub(tape: Tape, a: Tensor, b: Tensor, name: str = "sub") -> Tensor:
    """Records `a - b` of two tensors of one type, where `b` has a's shape or broadcasts to it; a new tensor like `a`.

    `a` gets the output's gradient itself, `b` its negation in a new tensor, summed to its shape. `name`: name of the
    output's storage.
    """
    shape, dtype = a.shape, a.dtype
    node = tape.node((a, b), (), lambda tape, grads, saved: [grads[0], new(tape, shape, dtype, f"grad_{name}")],
                     reduce_to=(a.shape, b.shape))
    out = new(tape, shape, dtype, name, a.nbytes + b.nbytes)
    out.node = node
    return out


def mul_(tape: Tape, a: Tensor, b: Param) -> None:
    """Records `a *= b` in place, for `b` of one element without a gradient, which autograd saves.

    The gradient of `a` is made in the wider of their types and then cast.
    """
    shape, dtype, wide = a.shape, a.dtype, max((a.dtype, b.dtype), key=dtype_bytes)
    moved = a.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, wide, "grad_mul", moved), None]

    node = tape.node((a, b), (b,), backward, reduce_to=(shape, b.shape), cast_to=(dtype, b.dtype))
    tape.compute(Kernel.ELEMENTWISE, a.numel, 2 * moved)
    a.node = node


def _pass_twice(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    return [grads[0], grads[0]]


def mul_rows(tape: Tape, x: Tensor, weights: Tensor, name: str) -> Tensor:
    """`x * weights.unsqueeze(-1)` of `x` [r, k] and `weights` [r]: [r, k] in the wider of their types.

    Both gradients are made in that type and then cast back. `name`: name of the output's storage.
    """
    shape, dtype, rows, weights_dtype = x.shape, x.dtype, (x.shape[0], 1), weights.dtype
    wide = max((dtype, weights.dtype), key=dtype_bytes)
    x_needs, w_needs, moved = needs_grad(x), needs_grad(weights), x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_w = new(tape, shape, wide, f"grad_{name}", 2 * moved) if w_needs else None
        to_x = new(tape, shape, wide, f"grad_{name}", 2 * moved) if x_needs else None
        return [to_x, to_w]

    save: list[Operand] = [*[weights] * x_needs, *[x] * w_needs]
    node = tape.node((x, weights), save, backward, reduce_to=(shape, rows), cast_to=(dtype, weights_dtype))
    out = new(tape, shape, wide, name, moved)
    out.node = node
    return out


def _broadcast(a: Operand, b: Operand) -> tuple[int, ...]:
    """The shape of a product; `a` and `b` broadcast against each other."""
    rank = max(len(a.shape), len(b.shape))
    left, right = (1,) * (rank - len(a.shape)) + a.shape, (1,) * (rank - len(b.shape)) + b.shape
    return tuple(max(m, n) for m, n in zip(left, right, strict=True))


def mul(tape: Tape, a: Operand, b: Operand, name: str = "mul") -> Tensor:
    """Records `a * b` with broadcasting; returns the product in the wider of their types.

    Each operand is saved only if the other needs a gradient; gradients of broadcast operands are summed to their shape.
    """
    shape, a_shape, b_shape = _broadcast(a, b), a.shape, b.shape
    dtype, types = max((a.dtype, b.dtype), key=dtype_bytes), (a.dtype, b.dtype)
    a_needs, b_needs, moved = needs_grad(a), needs_grad(b), a.nbytes + b.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b = new(tape, shape, dtype, f"grad_{name}", moved) if b_needs else None
        to_a = new(tape, shape, dtype, f"grad_{name}", moved) if a_needs else None
        return [to_a, to_b]

    save: list[Operand] = [b] * a_needs + [a] * b_needs
    node = tape.node((a, b), save, backward, reduce_to=(a_shape, b_shape), cast_to=types)
    out = new(tape, shape, dtype, name, moved)
    out.node = node
    return out


def div(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Records `a / b` of [r, k] and [r, 1], of one type; returns a new tensor like `a`. Autograd saves both.

    The divisor's gradient comes first, of the quotient divided once more (torch 2.13 `FunctionsManual.cpp`,
    div_tensor_other_backward: `-grad * ((self / other) / other)`).
    """
    shape, dtype, moved = a.shape, a.dtype, 2 * a.nbytes

    def of_divisor(tape: Tape) -> Tensor:
        _once = new(tape, shape, dtype, "grad_div", moved)
        _twice = new(tape, shape, dtype, "grad_div", moved)
        _opposite = new(tape, shape, dtype, "grad_div", moved)
        return new(tape, shape, dtype, "grad_div", moved)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b = of_divisor(tape)
        return [new(tape, shape, dtype, "grad_div", moved), to_b]

    node = tape.node((a, b), (a, b), backward, reduce_to=(shape, b.shape))
    out = new(tape, shape, dtype, "div", moved)
    out.node = node
    return out


def div_(tape: Tape, a: Tensor, b: Tensor) -> None:
    """Records `a /= b` in place.

    If `b` needs a gradient, autograd saves `b` and a copy of the old `a`; otherwise the division is not differentiated.
    A wider `b` makes gradients in its type: that of `a` is then cast (torch 2.13 `FunctionsManual.cpp`,
    div_tensor_other_backward: `-grad * ((self / other) / other)`).
    """
    shape, b_shape, dtype, moved = a.shape, b.shape, a.dtype, a.nbytes + b.nbytes
    wide, types = max((a.dtype, b.dtype), key=dtype_bytes), (a.dtype, b.dtype)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        steps = (wide, wide, dtype, wide)
        to_b: Tensor | None = [new(tape, shape, step, "grad_div", moved) for step in steps][-1]
        to_a = new(tape, shape, wide, "grad_div", moved)
        return [to_a, to_b]

    node = None
    if needs_grad(b):
        before = new(tape, shape, dtype, "clone", a.nbytes)
        node = tape.node((a, b), (before, b), backward, reduce_to=(shape, b_shape), cast_to=types)
    tape.compute(Kernel.ELEMENTWISE, a.numel, moved + a.nbytes)
    a.node = node


def masked_fill(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """Records `x.masked_fill(mask, number)`; returns a new tensor with the shape and type of `x`.

    Autograd saves the mask.
    """
    shape, dtype, moved = x.shape, x.dtype, x.nbytes + mask.nbytes
    node = tape.node((x,), (mask,), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_masked_fill", moved)])
    out = new(tape, shape, dtype, "masked_fill", moved)
    out.node = node
    return out


def select(tape: Tape, x: Tensor, shape: Sequence[int], dtype: str, name: str) -> Tensor:
    """Output, of the given shape and type, of an elementwise operator of `x` without a gradient."""
    return new(tape, shape, dtype, name, x.nbytes)
