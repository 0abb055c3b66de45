"""Attention as torch's own operators, which write every pair of a query and a key (attn_implementation eager).

[Note: eager attention]
transformers 5.23 `models/llama/modeling_llama.py`, eager_attention_forward, the same function in every family but
GPT-OSS: keys and values are copied for every head, scores are made in the compute dtype, scaled, and the mask is added,
each in a new tensor [b, heads, s, s]; softmax reads them in fp32 and its output is cast back. Autograd keeps softmax's
output in fp32 and its cast, which meets the values: 6 bytes a pair and head in 16 bits, 4 in fp32. For fp16 the CUDA
kernel of softmax reads 16 bits itself (torch `ATen/native/SoftMax.cpp`, half_to_float). Dropout of probability 0 is the
tensor itself. The layer holds the probabilities until it returns, even where no graph does.

A product takes the heads of all sequences as one stack of matrices: with several sequences, what is in the memory order
[b, s, heads, d] is copied first (torch 2.13 `ATen/native/LinearAlgebra.cpp`, _matmul_impl: reshape).
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.logits import CAP
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["added_mask", "eager_core", "from_largest", "scores_of", "weighted_values"]


def eager_core(tape: Tape, mask: Tensor | None, held: list[Tensor], *,
               by_heads: bool, caps: bool = False,
               narrowed: Callable[[Tensor], Tensor] | None = None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention function: (query, key, value), each [b, s, heads, d], to query's shape.

    `mask`: added to the scores, None without one. `held`: list that gets the probabilities, which the module returns to
    the layer. `by_heads`: query and key are in the memory order [b, heads, s, d], as rotation leaves them if it ends by
    joining. `caps`: scores are kept below a cap before the mask is added (`models/gemma2`). `narrowed`: makes of what a
    product takes what it computes in, under autocast.
    """

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (aten.expand_heads(tape, x, q.shape[2] // x.shape[2]) for x in (k, v))
        copied = k.shape[2] > 1  # what repeats a single head is a view
        cast = narrowed or _same
        casts = [cast(keys), cast(q)]  # a product's own, with copies by heads of them
        scores = scores_of(tape, _stacked(tape, casts[1], by_heads=by_heads),
                           _stacked(tape, casts[0], by_heads=by_heads or (keys is not k and copied)), casts)
        for step in CAP if caps else ():
            scores = step(tape, scores)
        weights = scores if mask is None else added_mask(tape, scores, mask)
        del scores
        weights = aten.cast(tape, _softmax_in_fp32(tape, weights), q.dtype)
        held.append(weights)
        casts += [cast(values), cast(weights)]
        return weighted_values(tape, casts[1], _stacked(tape, casts[0], by_heads=values is not v and copied), casts)

    return core


def _same(x: Tensor) -> Tensor:
    return x


def _softmax_in_fp32(tape: Tape, x: Tensor) -> Tensor:
    return aten.softmax(tape, x if x.dtype == "fp16" else aten.cast(tape, x, "fp32"), dtype="fp32")


def scores_of(tape: Tape, q: Tensor, keys: Tensor, casts: list[Tensor]) -> Tensor:
    """`q @ keys.transpose * number`, [b, heads, s, s], of two tensors [b, s, heads, d] in the memory order of heads.

    `casts`: what lives as long as the product runs; it gets empty.
    """
    batch, seq, heads, dim = q.shape
    scores = aten.product(tape, q, keys, (batch, heads, seq, seq), dim, "scores")
    del q, keys
    casts.clear()
    return aten.mul_scalar(tape, scores)


def added_mask(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """`x + mask` of scores [b, heads, s, s] in a new tensor of the wider type; the mask gets no gradient."""
    node = tape.node((x,), (), lambda tape, grads, saved: [grads[0]], reduce_to=(x.shape,), cast_to=(x.dtype,))
    out = aten.new(tape, x.shape, max((x.dtype, mask.dtype), key=dtype_bytes), "masked", x.nbytes + mask.nbytes)
    out.node = node
    return out


def from_largest(tape: Tape, x: Tensor) -> Tensor:
    """Logits less the largest of their row, `x - x.max(dim=-1, keepdim=True).values`, in a new tensor."""
    shape, dtype, rows = x.shape, x.dtype, (*x.shape[:-1], 1)

    def to_largest(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        zeros = aten.new(tape, shape, dtype, "zeros")
        return [aten.new(tape, shape, dtype, "grad_max", zeros.nbytes)]

    node = tape.node((x,), (), to_largest)
    largest = aten.new(tape, rows, dtype, "max", x.nbytes)
    indices = tape.empty(rows, "int64", "max_indices")
    tape.save(node, indices)
    largest.node = node
    del indices
    node = tape.node((x, largest), (), lambda tape, grads, saved: [grads[0], aten.new(tape, shape, dtype, "grad_sub")],
                     reduce_to=(shape, rows))
    out = aten.new(tape, shape, dtype, "from_largest", x.nbytes)
    out.node = node
    return out


def weighted_values(tape: Tape, weights: Tensor, values: Tensor, casts: list[Tensor]) -> Tensor:
    """`weights @ values`, then a copy in the memory order [b, s, heads, d]; values in the same shape, by heads.

    `casts`: as those of `scores_of`.
    """
    out = aten.product(tape, weights, values, values.shape, weights.shape[2], "attention")
    del values, weights  # copies by heads, or by autocast, are the product's own
    casts.clear()
    shape, dtype = out.shape, out.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [grad if shape[0] == 1 else aten.new(tape, shape, dtype, "grad_heads", grad.nbytes, Kernel.COPY)]

    node = tape.node((out,), (), backward)
    made = aten.new(tape, shape, dtype, "attention", out.nbytes, Kernel.COPY)
    made.node = node
    return made


def _stacked(tape: Tape, x: Tensor, *, by_heads: bool) -> Tensor:
    return x if by_heads or x.shape[0] == 1 else aten.contiguous(tape, x, "heads")
