"""Matrix products: linear layers, batched and grouped products."""

from __future__ import annotations

import math

from simcore.operators.shared.aten.kernels import Grads, Operand, Saved, needs_grad, new, pass_on
from simcore.recording.kernel_shape import shape_of
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["baddbmm", "bmm", "grouped_mm", "linear", "permuted", "product", "reshaped", "shapes_of_group", "strided"]


def linear(tape: Tape, x: Tensor, weight: Operand, name: str, kernel: Kernel = Kernel.GEMM,
           bias: Operand | None = None, operator: str = "mm") -> Tensor:
    """`x @ weight.T + bias` of `x` [..., k] and `weight` [n, k]: a new tensor [..., n] named `name`.

    In backward the weight's gradient is made first; with a bias the operator is `addmm` and the gradient of x comes
    first. The bias's gradient is the output's, summed to its shape. `kernel`: class of all its products; `operator`:
    name by which a selective checkpoint decides whether to keep the output.
    """
    n = weight.shape[0]
    x_shape, w_shape, w_dtype, dtype, moved = x.shape, weight.shape, weight.dtype, x.dtype, x.nbytes + weight.nbytes
    x_needs, w_needs, flops = needs_grad(x), needs_grad(weight), 2 * x.numel * n
    has_bias, b_needs = bias is not None, bias is not None and needs_grad(bias)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        moved = grad.nbytes
        to_w = for_weight(tape, moved) if not has_bias and tape.half != "input" else None
        to_x = (new(tape, x_shape, dtype, f"grad_{name}", moved + w_bytes, kernel, flops)
                if x_needs and tape.half != "weight" else None)
        if not has_bias:
            return [None, to_x, to_w]
        return [grad if b_needs else None, to_x, for_weight(tape, moved)]

    def for_weight(tape: Tape, moved: int) -> Tensor | None:
        return new(tape, w_shape, w_dtype, "grad_weight", moved + x_bytes, kernel, flops) if w_needs else None

    x_bytes, w_bytes = x.nbytes, weight.nbytes
    save: list[Operand] = [*[x] * w_needs, *[weight] * x_needs]
    node = tape.node((bias, x, weight), save, backward, reduce_to=(bias.shape,) if bias else ())
    (out,) = tape.outputs(operator, lambda: (new(tape, (*x_shape[:-1], n), dtype, name, moved, kernel, flops),))
    out.node = node
    return out


def bmm(tape: Tape, x: Tensor, weight: Tensor, name: str) -> Tensor:
    """`torch.bmm(x, weight.transpose(1, 2))`: rows [r, k] become [r, n], with weight [e, n, k].

    The rows are spread evenly over the e experts. The weight's gradient is made first.
    """
    n = weight.shape[1]
    x_shape, w_shape, dtype = x.shape, weight.shape, x.dtype
    x_needs, w_needs, flops = needs_grad(x), needs_grad(weight), 2 * x.numel * n
    x_bytes, w_bytes, kernel = x.nbytes, math.prod(w_shape) * dtype_bytes(dtype), Kernel.GROUPED_GEMM
    wide, narrow, by_rows = shapes_of_group(math.prod(x_shape[:-1]), x_shape[-1], n, w_shape[0])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_w = new(tape, w_shape, dtype, "grad_weight", x_bytes, kernel, flops, by_rows) if w_needs else None
        to_x = new(tape, x_shape, dtype, f"grad_{name}", w_bytes, kernel, flops, narrow) if x_needs else None
        return [to_x, to_w]

    save: list[Tensor | None] = ([x] if w_needs else []) + ([None] if x_needs else [])
    node = tape.node((x, weight), save, backward)
    out = new(tape, (*x_shape[:-1], n), dtype, name, x_bytes + w_bytes, kernel, flops, wide)
    out.node = node
    return out


def shapes_of_group(rows: int, k: int, n: int, experts: int) -> tuple[int, int, int]:
    """Packed shapes (`kernel_shape.shape_of`) of three grouped products, `k` inputs to `n` outputs.

    In order: forward, the input's gradient, the weight's gradient. `rows` counts the rows of all `experts` together.
    """
    return shape_of(rows, n, experts), shape_of(rows, k, experts), shape_of(n, k, experts, sums_rows=True)


def baddbmm(tape: Tape, weight: Param, left: Tensor, right: Tensor, name: str) -> Tensor:
    """`torch.baddbmm(weight, left, right, alpha=number)`: a new tensor [e, n, k] for a frozen `weight` [e, n, k].

    `left` [e, n, r], `right` [e, r, k]. In backward the gradient of `left` is made first; each is a product and its
    multiple by the number.
    """
    shapes, dtype = (left.shape, right.shape), weight.dtype
    flops, moved = 2 * weight.numel * right.shape[1], weight.nbytes + left.nbytes + right.nbytes
    experts, n, k = weight.shape
    rank, w_bytes = right.shape[1], weight.nbytes
    gemms = shape_of(experts * n, rank, experts), shape_of(experts * rank, k, experts)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = []
        for shape, gemm in zip(shapes, gemms, strict=True):
            grad = new(tape, shape, dtype, f"grad_{name}", w_bytes, Kernel.GROUPED_GEMM, flops, gemm)
            made.append(new(tape, shape, dtype, f"grad_{name}", grad.nbytes))
            del grad
        return made

    node = tape.node((left, right), (left, right), backward)
    out = new(tape, weight.shape, dtype, name, moved, Kernel.GROUPED_GEMM, flops, shape_of(experts * n, k, experts))
    out.node = node
    return out


def grouped_mm(tape: Tape, x: Tensor, weight: Operand, offsets: Tensor, name: str, *,
               transposed: bool = False) -> Tensor:
    """`F.grouped_mm(x, weight.transpose(-2, -1), offs=offsets)`: rows [r, k] become [r, n].

    The rows are sorted by expert; the weight is [e, n, k] for e experts, or with `transposed` [e, k, n], taken as it
    is; `offsets` are saved. The weight's gradient is made first, in the weight's own strides
    (`_grouped_mm_mat2_backward`).
    """
    n = weight.shape[2 if transposed else 1]
    x_shape, w_shape, w_dtype, dtype = x.shape, weight.shape, weight.dtype, x.dtype
    x_needs, w_needs, flops = needs_grad(x), needs_grad(weight), 2 * x.numel * n
    x_bytes, w_bytes, kernel = x.nbytes, weight.nbytes, Kernel.GROUPED_GEMM
    wide, narrow, by_rows = shapes_of_group(math.prod(x_shape[:-1]), x_shape[-1], n, w_shape[0])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_w = new(tape, w_shape, w_dtype, "grad_weight", x_bytes, kernel, flops, by_rows) if w_needs else None
        to_x = new(tape, x_shape, dtype, f"grad_{name}", w_bytes, kernel, flops, narrow) if x_needs else None
        return [to_x, to_w]

    save: list[Operand] = [*[weight] * x_needs, offsets, *[x] * w_needs]
    node = tape.node((x, weight), save, backward)
    out = new(tape, (*x_shape[:-1], n), dtype, name, x_bytes + w_bytes, kernel, flops, wide)
    out.node = node
    return out


def strided(tape: Tape, weight: Param) -> Tensor:
    """View of a parameter whose gradient will arrive transposed.

    AccumulateGrad copies it into the parameter's strides, but not where it adds to a gradient that exists already
    (torch 2.13 `torch/csrc/autograd/functions/accumulate_grad.h`).
    """
    shape, dtype = weight.shape, weight.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        if weight.grad_exists:
            return [grads.pop()]
        return [new(tape, shape, dtype, "grad_weight", weight.nbytes, Kernel.COPY)]

    return Tensor(None, shape, dtype, tape.node((weight,), (), backward))


def reshaped(tape: Tape, weight: Param, shape: tuple[int, ...]) -> Tensor:
    """View of a parameter under another `shape`; its gradient is a view, too."""
    return Tensor(None, shape, weight.dtype, tape.node((weight,), (), pass_on))


def permuted(tape: Tape, weight: Param, shape: tuple[int, ...]) -> Tensor:
    """View of a parameter whose dimensions are reshaped, then permuted to `shape`; its gradient is copied back."""
    own, dtype, moved = weight.shape, weight.dtype, weight.nbytes
    node = tape.node((weight,), (), lambda tape, grads, saved: [
        new(tape, own, dtype, "grad_weight", moved, Kernel.COPY)])
    return Tensor(None, shape, dtype, node)


def product(tape: Tape, a: Tensor, b: Operand, shape: tuple[int, ...], inner: int, name: str) -> Tensor:
    """`torch.matmul` of two stacks of matrices, one a head: a new tensor of the given `shape`.

    `inner`: length of the dimension that is summed over; `b` may be one matrix for all. In backward the gradient of `b`
    is made first.
    """
    shapes, dtype, out_numel = (a.shape, b.shape), a.dtype, math.prod(shape)
    a_needs, b_needs, flops, moved = needs_grad(a), needs_grad(b), 2 * out_numel * inner, a.nbytes + b.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b, to_a = (new(tape, s, dtype, f"grad_{name}", moved, Kernel.GEMM, flops) if needs else None
                      for s, needs in ((shapes[1], b_needs), (shapes[0], a_needs)))
        return [to_a, to_b]

    node = tape.node((a, b), [*[b] * a_needs, *[a] * b_needs], backward)
    out = new(tape, shape, dtype, name, moved, Kernel.GEMM, flops)
    out.node = node
    return out
