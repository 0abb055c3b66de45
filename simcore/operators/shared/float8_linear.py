"""torchao's Float8Linear with a scale a tensor, without torch.compile, over a weight that FSDP2 has gathered in fp8.

torchao 0.18 `float8/`: `float8_linear.py` (matmul_with_hp_or_float8_args), `float8_scaling_utils.py`,
`float8_utils.py` (tensor_to_scale, to_fp8_saturated), `float8_ops.py` (preprocess_addmm). Measured by
`tests/truth/probe_float8_linear.py`.

[Note: casts without a compiler]
A cast reads absolute values for the largest one, then makes the tensor in fp32, times its scale, cut at fp8's range,
and only then one byte an element. The input is kept in 16 bits and is cast again in backward; so is the gradient, once
for each of its two products. A product reads rows of its first operand and columns of its second: what lies the other
way round is copied first. Scales weigh a few bytes and are left out, as are the same casts of a shard before it is
gathered.
"""

from __future__ import annotations

from simcore.operators.shared.aten.kernels import Grads, Saved, new
from simcore.recording.kernel_shape import shape_of
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["float8_linear"]


def float8_linear(tape: Tape, x: Tensor, weight: Param, bias: Param | None, name: str) -> Tensor:
    """`x @ weight.T + bias`: [..., n] in x's type, for `x` [..., k] and `weight` [n, k] in fp8.

    Gradients are in x's type; that of x is made whether it is needed or not. For backward it saves x and the weight.
    """
    (n, k), shape, dtype = weight.shape, x.shape, x.dtype
    rows = x.numel // k
    flops, trains = 2 * rows * n * k, weight.trainable

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        first = _cast(tape, grad, "grad_fp8")
        turned = new(tape, (n, k), "fp8", "weight_columns", n * k)
        to_x = new(tape, shape, dtype, f"grad_{name}", (rows + k) * n, Kernel.FP8_GEMM, flops, shape_of(rows, k))
        del turned
        second, again = _cast(tape, grad, "grad_fp8"), _cast(tape, saved[0], f"{name}.input_fp8")
        copies = [new(tape, (rows, n), "fp8", "grad_columns", rows * n),
                  new(tape, (rows, k), "fp8", f"{name}.input_columns", rows * k)]
        to_weight = new(tape, (n, k), dtype, "grad_weight", rows * (n + k), Kernel.FP8_GEMM, flops,
                        shape_of(n, k, sums_rows=True)) if trains else None
        del copies, first, second, again
        return [to_x, to_weight]

    narrow = _cast(tape, x, f"{name}.input_fp8")
    node = tape.node((x, weight), (), backward)
    out = new(tape, (*shape[:-1], n), dtype, name, (rows + n) * k, Kernel.FP8_GEMM, flops, shape_of(rows, n))
    tape.save(node, x, weight)
    del narrow
    out.node = node
    return out if bias is None else _biased(tape, out, bias, name)


def _cast(tape: Tape, x: Tensor, name: str) -> Tensor:
    """[Note: casts without a compiler]."""
    shape, num_elements = x.shape, x.numel
    _largest(tape, x, name)
    wide = new(tape, shape, "fp32", f"{name}.wide", x.nbytes)
    scaled = new(tape, shape, "fp32", f"{name}.scaled", 4 * num_elements)
    del wide
    cut = new(tape, shape, "fp32", f"{name}.cut", 4 * num_elements)
    out = new(tape, shape, "fp8", name, 4 * num_elements)
    del scaled, cut
    return out


def _largest(tape: Tape, x: Tensor, name: str) -> None:
    absolute = new(tape, x.shape, x.dtype, f"{name}.absolute", x.nbytes)
    tape.compute(Kernel.ELEMENTWISE, absolute.numel, absolute.nbytes)


def _biased(tape: Tape, x: Tensor, bias: Param, name: str) -> Tensor:
    """A sum of its own, whose gradient is summed for the bias."""
    node = tape.node((x, bias), (), lambda tape, grads, saved: [grads[0], grads[0]], reduce_to=(x.shape, bias.shape))
    out = new(tape, x.shape, x.dtype, name, x.nbytes)
    out.node = node
    return out
