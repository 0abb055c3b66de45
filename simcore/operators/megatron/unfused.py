"""Attention that is not one kernel: the square of scores is written out, and its softmax kept.

TransformerEngine 2.18 `pytorch/attention/dot_product_attention/backends.py` (UnfusedDotProductAttention) and
megatron-core 0.16.1 `transformer/dot_product_attention.py` do the same: product, scale-mask-softmax in one kernel,
dropout, product. Masks are causal by the kernel: none is read. Neither runs with context parallelism.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import dropped, reordered
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["unfused_core"]

_TORCH_SOFTMAX: Final = 4
"""Operators of torch where nothing fuses it: a cast, the mask, the softmax, a cast back; so many in backward."""


def unfused_core(c: Context, num_heads: int, parts: tuple[Tensor, Tensor, Tensor], columns: int, *, dropout: bool,
                 plain: bool) -> Tensor:
    """Attention written out as matrix products; returns [tokens, `columns`].

    `parts`: q, k and v, each [tokens, this rank's heads * d]; k and v may have fewer heads. For backward it saves them,
    the softmax, and with `dropout` its mask and what is left. `num_heads`: heads of all tp ranks; `plain`: q, k and v
    are parts of one tensor, so their gradients are concatenated.
    """
    q, k, v = parts
    heads = num_heads // c.run.tp
    if k.shape[1] < q.shape[1]:  # repeat_interleave: keys and values of a group, once for each of its heads
        k, v = _repeated(c, k, q.shape[1], "key"), _repeated(c, v, columns, "value")
    links = [Tensor(x.storage, x.shape, x.dtype, x.node, x.output) for x in (q, k, v)]
    if plain:
        links = _joined(c, links)
    scores = _scores(c, heads, links[0], links[1])
    probs = _softmax(c, scores)
    del scores
    if dropout:
        probs = dropped(c, probs, "attention_probs")
    mixed = _weighted(c, probs, links[2], columns)
    return reordered(c, mixed, "attention_out", "grad_heads_first")


def _joined(c: Context, parts: list[Tensor]) -> list[Tensor]:
    """Views of one tensor: their gradients are concatenated (`utils.py`, SplitAlongDim)."""
    shapes = [x.shape for x in parts]

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        whole = c.new(shapes[0][0], sum(shape[1] for shape in shapes), "grad_qkv")
        c.elementwise(whole, 2, Kernel.COPY)
        return [Tensor(whole.storage, shape, c.dtype) for shape in shapes] if any(grads) else [None] * 3

    made = [Tensor(x.storage, x.shape, x.dtype) for x in parts]
    c.node(made[0], parts, (), back)
    for i in (1, 2):
        made[i].node, made[i].output = made[0].node, i
    return made


def _repeated(c: Context, x: Tensor, columns: int, name: str) -> Tensor:
    rows, own = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, own, f"grad_{name}_repeated")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    out = c.new(rows, columns, f"{name}_repeated")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (x,), (), back)
    return out


def _scores(c: Context, heads: int, q: Tensor, k: Tensor) -> Tensor:
    """Queries times keys of all positions, into a tensor that `baddbmm` makes besides the one it is given.

    What it is given lies in the global buffer where attention is core's own (`simcore/memory/workspace.py`).
    """
    rows, keys = q.shape[0], c.run.seq
    shapes = q.shape, k.shape
    flops = 2 * rows * keys * q.shape[1]

    def back(_tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        grads = [c.tape.empty(shape, c.dtype, f"grad_{name}") for shape, name in zip(shapes, ("query", "key"),
                                                                                   strict=True)]
        c.tape.compute(Kernel.GEMM, 2 * flops, 2 * sum(x.nbytes for x in saved))
        return list(grads)

    own = c.options.core_attention
    given = None if own else c.new(rows * heads, keys, "scores_buffer")
    out = c.new(rows * heads, keys, "attention_scores")
    c.tape.compute(Kernel.GEMM, flops, out.nbytes)
    c.node(out, (q, k), (q, k), back)
    del given
    return out


def _softmax(c: Context, scores: Tensor) -> Tensor:
    """One kernel with scale and mask: keeps its result.

    Without masked_softmax_fusion the softmax is torch's and in fp32 (attention_softmax_in_fp32), and its result is cast
    (core 0.16.1 `fusions/fused_softmax.py`, forward_torch_softmax); the cast keeps nothing.
    """
    rows, keys = scores.shape
    fused = c.options.masked_softmax_fusion

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, keys, "grad_scores")
        c.elementwise(grad, 3, operators=0 if fused else _TORCH_SOFTMAX)
        return [grad]

    if fused:
        out = c.new(rows, keys, "attention_softmax")
        c.elementwise(out, 2)
        c.node(out, (scores,), (out,), back)
        return out
    wide = c.new(rows, keys, "attention_scores_fp32", "fp32")
    kept = c.new(rows, keys, "attention_softmax", "fp32")
    del wide
    out = c.new(rows, keys, "attention_probs")
    c.elementwise(kept, 4, operators=_TORCH_SOFTMAX)
    c.node(out, (scores,), (kept,), back)
    return out


def _weighted(c: Context, probs: Tensor, v: Tensor, columns: int) -> Tensor:
    """Probabilities times values; keeps both."""
    rows, shape = v.shape[0], v.shape
    flops = 2 * rows * probs.shape[1] * columns

    def back(_tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        to_probs = c.tape.empty(saved[0].shape, c.dtype, "grad_probs")
        to_values = c.tape.empty(shape, c.dtype, "grad_value")
        c.tape.compute(Kernel.GEMM, 2 * flops, 2 * to_probs.nbytes)
        return [to_probs, to_values]

    out = c.new(rows, columns, "attention_heads_first")
    c.tape.compute(Kernel.GEMM, flops, probs.nbytes)
    c.node(out, (probs, v), (probs, v), back)
    return out
