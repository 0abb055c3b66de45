"""Experts with biases, as GPT-OSS has them, in Megatron-Core's `TEGroupedMLP`.

megatron-core 0.16.1 `transformer/moe/experts.py`, `fusions/fused_bias_geglu.py` (`weighted_bias_quick_geglu_impl`);
megatron-bridge 0.3.1 `models/gpt_oss/gpt_oss_provider.py` sets quick GELU, the clamp at 7 and the fusion. The first
GEMM adds its bias itself, the second's is added by torch, expert by expert, times the probabilities.
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import halves
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["clamped", "clamped_halves", "with_scaled_bias", "with_second_bias"]


def clamped(c: Context, x: Tensor) -> Tensor:
    """Both halves of `x` [rows, columns] (gate and up), each clamped, in a new tensor of that shape.

    For backward it saves `x`; the fused activation after it saves the result.
    """
    rows, wide = x.shape

    def narrowed(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        return [Tensor(grads[0].storage, (rows, wide // 2), c.dtype) for _ in range(2)]

    cut = clamped_halves(c, x)
    out = c.new(rows, wide, "experts.clamped")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, cut, (), narrowed)
    return out


def clamped_halves(c: Context, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up of `x` [rows, 2 n], each clamped in a new tensor [rows, n]; for backward it saves `x`."""
    gate, up = halves(c, x, "grad_experts_halves")
    return _clamp(c, gate), _clamp(c, up)


def _clamp(c: Context, x: Tensor) -> Tensor:
    """Keeps its input (torch 2.13 derivatives.yaml, clamp: where the gradient passes is found again)."""
    rows, columns = x.shape

    def back(tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        passes = tape.empty((rows, columns), "uint8", "clamp_passes")
        grad = c.new(rows, columns, "grad_experts_clamp")
        c.elementwise(grad, 4)
        del passes
        return [grad]

    out = c.new(rows, columns, "experts.clamp")
    c.elementwise(out, 2)
    c.node(out, (x,), (x,), back)
    return out


def with_second_bias(c: Context, path: str, x: Tensor, probs: Tensor, experts: int) -> Tensor:
    """`x + bias * probs` of experts' rows `x` [rows, columns], in x's shape and type (`_apply_bias`).

    It is computed in the wider of both types, each expert's rows in a separate tensor first. `path`: name of the linear
    that has the bias; `probs`: [rows, 1]; `experts`: number of experts on this rank.
    """
    bias = c.param(f"{path}.bias")
    (rows, columns), each = x.shape, -(-x.shape[0] // experts)
    wide, probs_dtype = "fp32" if "fp32" in (x.dtype, probs.dtype) else x.dtype, probs.dtype

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        # The gradient of all rows in the wider type; products with bias and probabilities are made expert by expert.
        # Two products, their sums, the rows' own gradient cast and put together again, and what came first cast.
        full = c.new(rows, columns, "grad_experts_sum", wide) if wide != c.dtype else grads[0]
        product = c.new(each, columns, "grad_experts_product", wide)
        grad_probs = c.new(rows, 1, "grad_experts_probs", probs_dtype)
        grad = c.new(rows, columns, "grad_experts_out") if wide != c.dtype else grads[0]
        wider = dtype_bytes(wide)
        moved = 6 * wider + 2 * c.size + 2 * (wider + c.size) * (wide != c.dtype)
        c.tape.compute(Kernel.ELEMENTWISE, 2 * rows * columns, moved * rows * columns, 6 * experts + 2)
        del product, full
        return [grad, grad_probs, c.small_grad(bias)]

    product = c.new(each, columns, "experts.bias_product", wide)
    parts = c.new(rows, columns, "experts.with_bias_each", wide)
    c.elementwise(parts, 4, operators=2 * experts)
    del product
    whole = c.new(rows, columns, "experts.with_bias", wide)
    c.elementwise(whole, 2, Kernel.COPY)
    del parts
    out = whole
    if wide != c.dtype:
        out = c.new(rows, columns, "experts.out")
        c.elementwise(out, 3)
    c.node(out, (x, probs, bias), (probs,), back)
    return out


def with_scaled_bias(c: Context, path: str, x: Tensor, probs: Tensor, filled: int) -> Tensor:
    """`x + bias * probs` where TE's fused grouped MLP adds it: a view of `x` [rows, columns].

    Main `experts.py`, scale_bias: forward is part of the product; backward reads the gradient once for both sums
    (TransformerEngine 2.18 `pytorch/triton/grouped_dbias_dscales.py`). `path`: name of the linear that has the bias;
    `probs`: [rows, 1]; `filled`: rows that hold a token.
    """
    bias, (rows, x_columns), dtype = c.param(f"{path}.bias"), x.shape, probs.dtype

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad_probs = c.new(rows, 1, "grad_experts_probs", dtype)
        c.tape.compute(Kernel.ELEMENTWISE, filled * x_columns, c.size * filled * x_columns)
        return [grads[0], grad_probs, c.small_grad(bias)]

    out = Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x, probs, bias), (probs,), back)
    return out
