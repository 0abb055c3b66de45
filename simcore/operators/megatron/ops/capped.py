"""Attention and logits below a cap, which Gemma 2 has, as Megatron-Bridge runs them: torch's FlexAttention, and tanh.

Megatron-Bridge 067f987d `models/gemma/gemma2_provider.py:317` (Gemma2FlexDotProductAttention) and :410
(Gemma2OutputLayer). torch 2.13 `_inductor/kernel/flex/flex_attention.py`: query, key and value are read where they lie,
value in the tensor of all three, which is kept whole; the output has the order of the query's memory, and gradients
those of their tensors. The forward kernel writes the largest scores beside the log-sum-exp; backward sums each row's
products of output and gradient first. Blocks that the mask leaves out are not computed.
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["capped_attention", "capped_logits"]


def capped_attention(c: Context, num_heads: int, parts: tuple[Tensor, Tensor, Tensor], pairs: int) -> Tensor:
    """Output of attention, like the query; `parts`: q, k and v, [tokens, this rank's heads * d].

    `num_heads`: of all tp ranks; `pairs`: twice those of a query and a key that are computed.
    """
    q, k, v = parts
    rows, heads = q.shape[0], num_heads // c.run.tp
    sizes = q.shape[1] // heads, q.shape[1] // heads, rows * heads
    flops, shapes = pairs * 2 * q.shape[1], [part.shape for part in (q, v, k)]

    def back(tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        sums = c.new(rows, heads, "attention_delta", "fp32")
        of_q, of_v, of_k = (tape.empty(shape, c.dtype, f"grad_{name}")
                            for shape, name in zip(shapes, ("query", "value", "key"), strict=True))
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 2 * sum(t.nbytes for t in saved),
                     shape_of_heads(*sizes, backward=True))
        del sums
        return [of_q, of_k, of_v]

    out = c.new(rows, q.shape[1], "attention_out")
    lse = c.new(rows, heads, "softmax_stats", "fp32")
    _largest = c.new(rows, heads, "largest_scores", "fp32")
    c.tape.compute(Kernel.ATTENTION, flops, 2 * q.nbytes + k.nbytes + v.nbytes, shape_of_heads(*sizes))
    c.node(out, (q, k, v), (q, k, v, out, lse), back)
    return out


def capped_logits(c: Context, x: Tensor) -> Tensor:
    """`cap * tanh(x / cap)` of logits, three operators, of which tanh keeps its result (logit_softcapping)."""
    return _applied(c, _applied(c, _applied(c, x, "logits.over_cap"), "logits.tanh", keeps=True), "logits.capped")


def _applied(c: Context, x: Tensor, name: str, *, keeps: bool = False) -> Tensor:
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, f"grad_{name}")
        c.elementwise(grad, 2 + keeps, operators=1)
        return [grad]

    out = c.new(rows, columns, name)
    c.elementwise(out, 2, operators=1)
    c.node(out, (x,), (out,) if keeps else (), back)
    return out
