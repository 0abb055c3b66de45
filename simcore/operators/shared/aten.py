"""PyTorch's eager operators: what each allocates, what its autograd node saves, and what its backward allocates.

Every function follows the formula of torch 2.13 (`tools/autograd/derivatives.yaml`) and the order in which the
generated code evaluates it: gradients of later arguments first, then of earlier ones, then broadcast gradients are
summed to the argument's shape. A node saves an argument only if another argument's gradient needs it.

A function's locals die when it returns, as PyTorch's do, so the order of its lines is the order of its allocations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

from simcore.recording.kernel_shape import shape_of, shape_of_heads
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["add", "add_", "add_scalar", "all_to_all", "bmm", "cast", "cat", "chunk", "clamp", "contiguous",
           "cross_entropy", "div_", "embedding", "exp", "flash_attention", "flash_attention_with_sinks", "gather",
           "gelu", "grouped_mm", "index", "index_add", "layer_norm", "linear", "log_softmax", "masked_attention",
           "masked_fill", "mean", "mul", "mul_rows", "mul_scalar", "neg", "new", "product", "relu", "repeat_heads",
           "rms_norm", "rotate", "rsqrt", "scaled_dot_product_attention", "select", "shapes_of_group", "sigmoid",
           "silu", "slice_half", "softmax", "sort", "split", "square", "strided", "sub", "sum_last", "sum_of",
           "swap_dims", "to_heads", "topk"]

Operand = Tensor | Param
Grads = list[Tensor | None]
Saved = list[Tensor]
_PRODUCTS = (Kernel.GEMM, Kernel.FP8_GEMM, Kernel.GRAD_GEMM)


def needs_grad(x: Operand) -> bool:
    """Whether a gradient will flow into it."""
    return x.trainable if isinstance(x, Param) else x.node is not None


def new(tape: Tape, shape: Sequence[int], dtype: str, name: str, moved: int = 0, kernel: Kernel = Kernel.ELEMENTWISE,
        flops: int = -1, product: int = 0) -> Tensor:
    """The output of a kernel that reads `moved` bytes; `flops` defaults to one an element.

    `product`: `shape_of` a product whose output is not its last dimension by all others.
    """
    out = tape.empty(shape, dtype, name)
    numel = out.numel
    if not product and kernel in _PRODUCTS:
        product = shape_of(math.prod(shape[:-1]), shape[-1])
    tape.compute(kernel, numel if flops < 0 else flops, moved + numel * dtype_bytes(dtype), product)
    return out


def _unary(tape: Tape, x: Operand, name: str, save: str = "", *, dtype: str = "", steps: int = 1) -> Tensor:
    """An operator on one tensor; its backward is `steps` kernels, the results of all but the last are temporary."""
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


@overload
def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor: ...
@overload
def cast(tape: Tape, x: Param, dtype: str) -> Operand: ...


def cast(tape: Tape, x: Operand, dtype: str) -> Operand:
    """`x.to(dtype)`: itself where it has that type."""
    return x if x.dtype == dtype else _unary(tape, x, f"to_{dtype}", dtype=dtype)


def neg(tape: Tape, x: Tensor) -> Tensor:
    """Negation."""
    return _unary(tape, x, "neg")


def exp(tape: Tape, x: Operand) -> Tensor:
    """Exponential."""
    return _unary(tape, x, "exp", "output")


def silu(tape: Tape, x: Tensor) -> Tensor:
    """SiLU."""
    return _unary(tape, x, "silu", "input")


def relu(tape: Tape, x: Tensor) -> Tensor:
    """ReLU."""
    return _unary(tape, x, "relu", "output")


def sigmoid(tape: Tape, x: Tensor) -> Tensor:
    """Sigmoid."""
    return _unary(tape, x, "sigmoid", "output")


def square(tape: Tape, x: Operand) -> Tensor:
    """`x.pow(2)`; its gradient is `grad * (2 * x.pow(1))`."""
    return _unary(tape, x, "pow", "input", steps=3)


def rsqrt(tape: Tape, x: Tensor) -> Tensor:
    """`x.rsqrt()`; its gradient is `-0.5 * grad * result.pow(3)`."""
    return _unary(tape, x, "rsqrt", "output", steps=3)


def rms_norm(tape: Tape, x: Tensor, weight: Param, name: str = "norm") -> Tensor:
    """`F.rms_norm` as one kernel (`_fused_rms_norm`): it saves its input, the weight and the fp32 inverse RMS of rows.

    torch 2.13 runs it in one piece on CUDA; the CPU build decomposes it.
    """
    shape, dtype, w_shape, w_dtype, moved = x.shape, x.dtype, weight.shape, weight.dtype, x.nbytes
    x_needs, w_needs = needs_grad(x), needs_grad(weight)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
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


def layer_norm(tape: Tape, x: Tensor, weight: Param, bias: Param | None, name: str = "norm") -> Tensor:
    """`F.layer_norm` in x's own type: it saves its input, the weight, and the fp32 mean and inverse deviation of rows.

    torch 2.13 `csrc/autograd` native_layer_norm; its backward is a kernel over rows and one over columns.
    """
    shape, dtype, moved = x.shape, x.dtype, x.nbytes
    needs = [needs_grad(x), *(needs_grad(p) for p in (weight, bias) if p is not None)]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = new(tape, shape, dtype, f"grad_{name}", 3 * moved, Kernel.NORM) if needs[0] else None
        made = [tape.empty(weight.shape, weight.dtype, "grad_weight") if need else None for need in needs[1:]]
        if any(needs[1:]):
            tape.compute(Kernel.NORM, math.prod(shape), 2 * moved)
        return [to_x, *made]

    node = tape.node((x, weight, *((bias,) if bias else ())), (x, weight), backward)
    out = new(tape, shape, dtype, name, moved, Kernel.NORM)
    statistics = [tape.empty((*shape[:-1], 1), "fp32", what) for what in ("mean", "rstd")]
    tape.save(node, *statistics)
    out.node = node
    return out


def gelu(tape: Tape, x: Tensor) -> Tensor:
    """GELU; its backward reads the input."""
    return _unary(tape, x, "gelu", "input")


def rotate(tape: Tape, x: Tensor, table: Tensor, *, copy_grad: bool = False) -> Tensor:
    """`x * table` of x [b, s, heads, d] in fp32, seen as complex pairs, and a constant table [(b,) s, d / 2, 2].

    The gradient is multiplied by the conjugate, which is written out first. `copy_grad`: it comes in another order, and
    is copied before it is seen as complex.
    """
    shape, dtype, moved, entries = x.shape, x.dtype, x.nbytes, table.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _copy = new(tape, shape, dtype, "grad_heads", moved, Kernel.COPY) if copy_grad else grads[0]
        grads.clear()
        conjugate = new(tape, entries, "fp32", "conjugate")
        return [new(tape, shape, dtype, "grad_rotary", moved + conjugate.nbytes)]

    node = tape.node((x,), (table,), backward)
    out = new(tape, shape, dtype, "rotary", moved)
    out.node = node
    return out


def mul_scalar(tape: Tape, x: Tensor) -> Tensor:
    """`x * number`: nothing is saved, wrapped numbers do not pass through saved-tensor hooks."""
    return _unary(tape, x, "scale")


def log_softmax(tape: Tape, x: Tensor) -> Tensor:
    """Log-softmax over the last dimension."""
    return _unary(tape, x, "log_softmax", "output")


def add_scalar(tape: Tape, x: Tensor) -> Tensor:
    """`x + number`: the gradient passes."""
    node = tape.node((x,), (), _pass)
    out = new(tape, x.shape, x.dtype, "add", x.nbytes)
    out.node = node
    return out


def _pass(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    return [grads[0]]


def add(tape: Tape, a: Tensor, b: Tensor, name: str = "add") -> Tensor:
    """`a + b` of one shape, in the wider of their types: both get the gradient itself."""
    node = tape.node((a, b), (), _pass_twice, reduce_to=(a.shape, b.shape), cast_to=(a.dtype, b.dtype))
    out = new(tape, a.shape, max((a.dtype, b.dtype), key=dtype_bytes), name, a.nbytes + b.nbytes)
    out.node = node
    return out


def add_(tape: Tape, a: Tensor, b: Tensor) -> None:
    """`a += b` of one shape and type, in place: both get the gradient itself."""
    tape.compute(Kernel.ELEMENTWISE, a.numel, 2 * a.nbytes + b.nbytes)
    a.node = tape.node((a, b), (), _pass_twice)


def clamp(tape: Tape, x: Tensor, bounds: int) -> Tensor:
    """`x.clamp(...)` with one or two bounds; its gradient is chosen where x is within them (`clamp_backward`)."""
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
    """`a - b` of one shape and type: b gets the gradient's opposite."""
    shape, dtype = a.shape, a.dtype
    node = tape.node((a, b), (), lambda tape, grads, saved: [grads[0], new(tape, shape, dtype, f"grad_{name}")])
    out = new(tape, shape, dtype, name, a.nbytes + b.nbytes)
    out.node = node
    return out


def _pass_twice(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    return [grads[0], grads[0]]


def mean(tape: Tape, x: Tensor) -> Tensor:
    """`x.mean(-1, keepdim=True)`; its gradient is the expanded one divided."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_mean")])
    out = new(tape, (*shape[:-1], 1), dtype, "mean", x.nbytes, flops=x.numel)
    out.node = node
    return out


def sum_of(tape: Tape, x: Tensor, count: int) -> Tensor:
    """`x.view(-1, count, k).sum(1)` of x [r, k]: the expanded gradient is copied by the view's backward."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_sum")])
    out = new(tape, (shape[0] // count, *shape[1:]), dtype, "sum", x.nbytes, flops=x.numel)
    out.node = node
    return out


def mul_rows(tape: Tape, x: Tensor, weights: Tensor, name: str) -> Tensor:
    """`x * weights.unsqueeze(-1)` of x [r, k] and weights [r], in the wider of their types.

    Both gradients are made in that type.
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


def sum_last(tape: Tape, x: Tensor, *, keepdim: bool = False) -> Tensor:
    """`x.sum(-1)`; its gradient is a view."""
    shape = x.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        return [grad and grad.view(*shape)]

    node = tape.node((x,), (), backward)
    out = new(tape, (*shape[:-1], 1) if keepdim else shape[:-1], x.dtype, "sum", x.nbytes, flops=x.numel)
    out.node = node
    return out


def _broadcast(a: Operand, b: Operand) -> tuple[int, ...]:
    """The shape of a product; `a` and `b` broadcast against each other."""
    rank = max(len(a.shape), len(b.shape))
    left, right = (1,) * (rank - len(a.shape)) + a.shape, (1,) * (rank - len(b.shape)) + b.shape
    return tuple(max(m, n) for m, n in zip(left, right, strict=True))


def mul(tape: Tape, a: Operand, b: Operand, name: str = "mul") -> Tensor:
    """`a * b` with broadcasting, in the wider of their types."""
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


def div_(tape: Tape, a: Tensor, b: Tensor) -> None:
    """`a /= b` in place: the node saves a copy of `a` as it was."""
    shape, b_shape, dtype, moved = a.shape, b.shape, a.dtype, a.nbytes + b.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b: Tensor | None = [new(tape, shape, dtype, "grad_div", moved) for _ in range(4)][-1]
        to_a = new(tape, shape, dtype, "grad_div", moved)
        return [to_a, to_b]

    node = None
    if needs_grad(b):
        before = new(tape, shape, dtype, "clone", a.nbytes)
        node = tape.node((a, b), (before, b), backward, reduce_to=(shape, b_shape))
    tape.compute(Kernel.ELEMENTWISE, a.numel, moved + a.nbytes)
    a.node = node


def linear(tape: Tape, x: Tensor, weight: Operand, name: str, kernel: Kernel = Kernel.GEMM,
           bias: Param | None = None, operator: str = "mm") -> Tensor:
    """`x @ weight.T + bias` of x [..., k] and weight [n, k]: the weight's gradient comes first.

    With a bias it is `addmm`, where x's comes first. The bias is broadcast: its gradient is the output's, summed.
    `operator`: what a selective checkpoint asks for.
    """
    n = weight.shape[0]
    x_shape, w_shape, w_dtype, dtype, moved = x.shape, weight.shape, weight.dtype, x.dtype, x.nbytes + weight.nbytes
    x_needs, w_needs, flops = needs_grad(x), needs_grad(weight), 2 * x.numel * n

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        moved = grad.nbytes
        to_w = for_weight(tape, moved) if bias is None and tape.half != "input" else None
        to_x = (new(tape, x_shape, dtype, f"grad_{name}", moved + w_bytes, kernel, flops)
                if x_needs and tape.half != "weight" else None)
        if bias is None:
            return [None, to_x, to_w]
        return [grad if bias.trainable else None, to_x, for_weight(tape, moved)]

    def for_weight(tape: Tape, moved: int) -> Tensor | None:
        return new(tape, w_shape, w_dtype, "grad_weight", moved + x_bytes, kernel, flops) if w_needs else None

    x_bytes, w_bytes = x.nbytes, weight.nbytes
    save: list[Operand] = [*[x] * w_needs, *[weight] * x_needs]
    node = tape.node((bias, x, weight), save, backward, reduce_to=(bias.shape,) if bias else ())
    (out,) = tape.outputs(operator, lambda: (new(tape, (*x_shape[:-1], n), dtype, name, moved, kernel, flops),))
    out.node = node
    return out


def bmm(tape: Tape, x: Tensor, weight: Tensor, name: str) -> Tensor:
    """`torch.bmm(x, weight.transpose(1, 2))` of rows [r, k], evenly over the experts, and weight [e, n, k]."""
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
    """Shapes of the products of `rows` of k by experts to n: of forward, of the input's gradient, of the weight's."""
    return shape_of(rows, n, experts), shape_of(rows, k, experts), shape_of(n, k, experts, sums_rows=True)


def grouped_mm(tape: Tape, x: Tensor, weight: Param, offsets: Tensor, name: str, *, transposed: bool = False) -> Tensor:
    """`F.grouped_mm(x, weight.transpose(-2, -1), offs=offsets)` of rows [r, k] by group and weight [e, n, k].

    The weight's gradient comes first, in the weight's own strides (`_grouped_mm_mat2_backward`). `transposed`: the
    weight is [e, k, n] and taken as it is.
    """
    n = weight.shape[2 if transposed else 1]
    x_shape, w_shape, w_dtype, dtype = x.shape, weight.shape, weight.dtype, x.dtype
    x_needs, w_needs, flops = needs_grad(x), weight.trainable, 2 * x.numel * n
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
    """A parameter whose gradient will arrive transposed: AccumulateGrad copies it into the parameter's strides.

    Not where it adds to a gradient that is there (torch 2.13 `torch/csrc/autograd/functions/accumulate_grad.h`).
    """
    shape, dtype = weight.shape, weight.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        if weight.grad_exists:
            return [grads.pop()]
        return [new(tape, shape, dtype, "grad_weight", weight.nbytes, Kernel.COPY)]

    return Tensor(None, shape, dtype, tape.node((weight,), (), backward))


def product(tape: Tape, a: Tensor, b: Tensor, shape: tuple[int, ...], inner: int, name: str) -> Tensor:
    """`torch.matmul` of matrices by heads into `shape`; `inner`: length of the sums. b's gradient comes first."""
    shapes, dtype, out_numel = (a.shape, b.shape), a.dtype, math.prod(shape)
    a_needs, b_needs, flops, moved = needs_grad(a), needs_grad(b), 2 * out_numel * inner, a.nbytes + b.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_b, to_a = (new(tape, s, dtype, f"grad_{name}", moved, Kernel.ATTENTION, flops) if needs else None
                      for s, needs in ((shapes[1], b_needs), (shapes[0], a_needs)))
        return [to_a, to_b]

    node = tape.node((a, b), [*[b] * a_needs, *[a] * b_needs], backward)
    out = new(tape, shape, dtype, name, moved, Kernel.ATTENTION, flops)
    out.node = node
    return out


def scaled_dot_product_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int = 0) -> Tensor:
    """Causal flash attention of q [b, s, heads, d]; it saves its inputs, its output and the fp32 log-sum-exp.

    `pairs` of a query and a key in one sequence, if not all.
    """
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    v_dim = v.shape[3]
    flops = (pairs or batch * seq * seq) * heads * (dim + v_dim)  # two products of 2 s^2 d, half of each masked
    moved = q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved, shape_of_heads(dim, v_dim, backward=True))
        return made

    node = tape.node((q, k, v), (q, k, v), backward)
    out, lse = tape.outputs("attention", lambda: (
        new(tape, (batch, seq, heads, v_dim), dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, v_dim)),
        tape.empty((batch, seq, heads), "fp32", "log_sum_exp")))
    tape.save(node, out, lse)
    out.node = node
    return out


def masked_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of q [b, s, heads, d] under a mask of truth values: the memory-efficient kernel.

    torch 2.13 `transformers/attention.cpp`, convert_boolean_attn_mask: each call writes the mask out anew in the type
    of q, for every row of the batch, and the kernel keeps it. Keys and values are repeated for every head before
    (`integrations/sdpa_attention.py`, use_gqa_in_sdpa). The log-sum-exp is rounded up to 32 positions
    (`transformers/cuda/attention.cu`). What the kernel skips of blocks that are masked whole is not known: FLOPs are
    those of the whole square.
    """
    k, v = (repeat_heads(tape, x, q.shape[2] // x.shape[2]) for x in (k, v))
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    flops = 4 * batch * seq * seq * heads * dim
    moved = q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        _delta = tape.empty((batch, heads, seq), "fp32", "attention_delta")
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved, shape_of_heads(dim, dim, backward=True))
        return made

    bias = new(tape, (batch, seq, seq), dtype, "attention_bias", seq * seq)
    node = tape.node((q, k, v), (q, k, v, bias), backward)
    moved += bias.nbytes
    del bias
    out, lse = tape.outputs("attention", lambda: (
        new(tape, q.shape, dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, dim)),
        tape.empty((batch, heads, -(-seq // 32) * 32), "fp32", "log_sum_exp")))
    tape.save(node, out, lse)
    out.node = node
    return out


def flash_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int, sequences: int) -> Tensor:
    """flash-attn 2 of q [b, s, heads, d]; packed, `sequences` of them lie in the one row.

    `csrc/flash_attn/flash_api.cpp` at 0251105a: mha_fwd and mha_varlen_fwd keep the inputs, the output and the fp32
    log-sum-exp; mha_bwd and mha_varlen_bwd accumulate dq in fp32, with 128 rows more for each packed sequence (else
    rows are rounded up to 128), and write dk and dv of every head before they are summed over groups.
    """
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    rows = batch * seq + 128 * sequences if sequences else batch * -(-seq // 128) * 128
    flops = 2 * pairs * heads * dim
    moved = q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        wide = -(-dim // 32) * 32 if dim <= 128 else -(-dim // 64) * 64
        _held = (tape.empty((heads, rows), "fp32", "attention_sums"),
                 tape.empty((rows, heads, wide), "fp32", "attention_dq"),
                 *(tape.empty(shapes[0], dtype, "attention_expanded") for _ in range(2 * (shapes[1][2] < heads))))
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved, shape_of_heads(dim, dim, backward=True))
        return made

    node = tape.node((q, k, v), (q, k, v), backward)
    out, lse = tape.outputs("attention", lambda: (
        new(tape, q.shape, dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, dim)),
        tape.empty((batch, seq, heads), "fp32", "log_sum_exp")))
    tape.save(node, out, lse)
    out.node = node
    return out


def flash_attention_with_sinks(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int, sequences: int) -> Tensor:
    """`kernels-community/vllm-flash-attn3` of q [b, s, heads, d]; packed, `sequences` of them lie in the one row.

    huggingface/kernels-community 0774fcce `vllm-flash-attn3/flash-attn/flash_api.cpp`, mha_bwd: two sums a row, dq and,
    with fewer heads of keys, dk and dv accumulated in fp32, heads of 64 at least, rows rounded up to tiles (of 128
    where heads are not wider than 64, else 64, as on sm80), and a tile more for each packed sequence.
    `flash_attn_interface.py`, FlashAttnFunc: the sinks are not saved and get no gradient.
    """
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    batch, seq, heads, dim = q.shape
    tile, wide, few = 128 if dim <= 64 else 64, max(64, -(-dim // 32) * 32), k.shape[2]
    rows = -(-(batch * seq + tile * sequences) // tile) * tile if sequences else batch * -(-seq // tile) * tile
    flops = 2 * pairs * heads * dim
    moved = q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        _held = (tape.empty((heads, rows), "fp32", "attention_sums"),
                 tape.empty((heads, rows), "fp32", "attention_log_sum_exp"),
                 tape.empty((heads, rows, wide), "fp32", "attention_dq"),
                 *(tape.empty((few, rows, wide), "fp32", name) for name in ("attention_dk", "attention_dv")
                   if few != heads))
        _order = tape.empty((-(-seq // tile), batch, heads), "int32", "attention_semaphore")
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved, shape_of_heads(dim, dim, backward=True))
        return made

    node = tape.node((q, k, v), (q, k, v), backward)
    out, lse = tape.outputs("attention", lambda: (
        new(tape, q.shape, dtype, "attention", moved, Kernel.ATTENTION, flops,
            shape_of_heads(dim, dim)),
        tape.empty((batch, seq, heads), "fp32", "log_sum_exp")))
    tape.save(node, out, lse)
    out.node = node
    return out


def to_heads(tape: Tape, x: Tensor, dim: int, *, copy_grad: bool = False) -> Tensor:
    """A view of [b, s, heads * dim] as [b, s, heads, dim]; `copy_grad`: its gradient has another order."""
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        if not copy_grad:
            return [grad.view(*shape)]
        return [new(tape, shape, dtype, "grad_heads", grad.nbytes, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    return Tensor(x.storage, (*shape[:2], shape[2] // dim, dim), dtype, node)


def repeat_heads(tape: Tape, x: Tensor, count: int) -> Tensor:
    """`x.repeat_interleave(count, dim=1)` of x [b, heads, s, d], written [b, s, heads, d] here; gradients add up."""
    if count == 1:
        return x
    batch, seq, heads, dim = shape = x.shape
    dtype = x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [new(tape, shape, dtype, "grad_heads", grad.nbytes, flops=grad.numel)]

    node = tape.node((x,), (), backward)
    out = new(tape, (batch, seq, heads * count, dim), dtype, "heads", x.nbytes, Kernel.COPY)
    out.node = node
    return out


def contiguous(tape: Tape, x: Tensor, name: str) -> Tensor:
    """A copy in another order; the gradient is a view."""
    node = tape.node((x,), (), _pass)
    out = new(tape, x.shape, x.dtype, name, x.nbytes, Kernel.COPY)
    out.node = node
    return out


def slice_half(tape: Tape, x: Tensor) -> Tensor:
    """Half of the last dimension."""
    return slice_last(tape, x, x.shape[-1] // 2)


def slice_last(tape: Tape, x: Tensor, size: int) -> Tensor:
    """`size` of the last dimension, a view; its gradient is written into zeros of the whole shape."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_slice")])
    return Tensor(x.storage, (*shape[:-1], size), dtype, node)


def cat(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Concatenation of the last dimension; the gradients are views of one."""
    shapes = (a.shape, b.shape)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [grad.view(*shape) for shape in shapes]

    node = tape.node((a, b), (), backward)
    out = new(tape, (*a.shape[:-1], a.shape[-1] + b.shape[-1]), a.dtype, "cat", a.nbytes + b.nbytes)
    out.node = node
    return out


def swap_dims(tape: Tape, x: Tensor, name: str) -> Tensor:
    """`x.transpose(...).reshape(...)`: a copy each way."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (),
                     lambda tape, grads, saved: [new(tape, shape, dtype, name, num_bytes, Kernel.PERMUTE)])
    out = new(tape, shape, dtype, name, num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def topk(tape: Tape, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest and their indices (saved)."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    values = new(tape, (*shape[:-1], k), dtype, "topk", x.nbytes, flops=x.numel)
    indices = tape.empty(values.shape, "int64", "topk_indices")
    tape.save(node, indices)
    values.node = node
    return values, indices


def _scatter(tape: Tape, shape: tuple[int, ...], dtype: str) -> Grads:
    """A gradient scattered into zeros, out of place."""
    zeros = new(tape, shape, dtype, "zeros")
    return [new(tape, shape, dtype, "grad_scatter", zeros.nbytes, Kernel.PERMUTE)]


def gather(tape: Tape, x: Tensor, indices: Tensor, name: str = "gather") -> Tensor:
    """`x.gather(-1, indices)`; the indices are saved."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (indices,), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    out = new(tape, indices.shape, dtype, name, 2 * indices.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def index(tape: Tape, x: Operand, rows: Tensor, name: str = "index") -> Tensor:
    """`x[rows]`; the row numbers are saved."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (rows,), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    out = tape.empty((*rows.shape, *shape[1:]), dtype, name)
    tape.compute(Kernel.PERMUTE, 0, 2 * out.nbytes)
    out.node = node
    return out


def index_add(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """`into.index_add(0, rows, x)` of constants `into`; `x` is saved too, for its shape."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (rows, x),
                     lambda tape, grads, saved: [new(tape, shape, dtype, "grad_index_add", num_bytes, Kernel.PERMUTE)])
    out = new(tape, into.shape, dtype, "index_add", into.nbytes + num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def masked_fill(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """`x.masked_fill(mask, number)`; the mask is saved."""
    shape, dtype, moved = x.shape, x.dtype, x.nbytes + mask.nbytes
    node = tape.node((x,), (mask,), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_masked_fill", moved)])
    out = new(tape, shape, dtype, "masked_fill", moved)
    out.node = node
    return out


def softmax(tape: Tape, x: Tensor) -> Tensor:
    """Softmax over the last dimension."""
    return _unary(tape, x, "softmax", "output")


def chunk(tape: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves of the last dimension, views of one node; their gradients are concatenated (`split_backward`)."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_chunk", num_bytes)])
    half = (*shape[:-1], shape[-1] // 2)
    return Tensor(x.storage, half, dtype, node), Tensor(x.storage, half, dtype, node, 1)


def split(tape: Tape, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Two parts of the last dimension, views of one node; their gradients are concatenated."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_split", num_bytes)])
    first, second = ((*shape[:-1], size) for size in sizes)
    return Tensor(x.storage, first, dtype, node), Tensor(x.storage, second, dtype, node, 1)


def sort(tape: Tape, x: Tensor) -> Tensor:
    """`x.argsort()` of indices: the sorted values are dropped."""
    values = new(tape, x.shape, "int64", "sort", x.nbytes, Kernel.PERMUTE)
    return tape.empty(values.shape, "int64", "order")


def select(tape: Tape, x: Tensor, shape: Sequence[int], dtype: str, name: str) -> Tensor:
    """Any elementwise operator that no gradient flows through."""
    return new(tape, shape, dtype, name, x.nbytes)


def all_to_all(tape: Tape, x: Tensor, rows: int, axis: str) -> Tensor:
    """Rows to the ranks that want them; `rows` arrive. Backward sends them home."""
    shape, dtype = x.shape, x.dtype

    def send(tape: Tape, shape: tuple[int, ...], name: str) -> Tensor:
        out = tape.empty(shape, dtype, name)
        tape.collective("all_to_all", axis, out.nbytes, dtype)
        return out

    node = tape.node((x,), (), lambda tape, grads, saved: [send(tape, shape, "grad_all_to_all")])
    out = send(tape, (rows, *shape[1:]), "all_to_all")
    out.node = node
    return out


def embedding(tape: Tape, weight: Param, batch: int, seq: int, *, grad_rows: int = 0) -> Tensor:
    """Rows of the table; the indices are the data loader's. `grad_rows`: rows of the gradient, 0 the table's."""
    shape, dtype = (grad_rows or weight.shape[0], weight.shape[1]), weight.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, dtype, "grad_weight", batch * seq * shape[1] * dtype_bytes(dtype), Kernel.EMBEDDING)]

    node = tape.node((weight,), (), backward)
    out = tape.empty((batch, seq, shape[1]), dtype, "embedding")
    tape.compute(Kernel.EMBEDDING, 0, 2 * out.nbytes)
    out.node = node
    return out


def cross_entropy(tape: Tape, logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy(logits, target)`: log-softmax, then the mean of the targets' entries."""
    shape, dtype = logits.shape, logits.dtype
    log_probabilities = log_softmax(tape, logits)
    node = tape.node((log_probabilities,), (log_probabilities, target),
                     lambda tape, grads, saved: [new(tape, shape, dtype, "grad_nll_loss", kernel=Kernel.LOSS)])
    loss = new(tape, (), dtype, "loss", target.nbytes, Kernel.LOSS)
    total_weight = tape.empty((), dtype, "total_weight")
    tape.save(node, total_weight)
    loss.node = node
    return loss
