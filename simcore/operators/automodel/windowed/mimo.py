"""Attention of MiMo-V2-Flash in NeMo Automodel with `attn: sdpa`, which names no kernel.

nemo-automodel 0.7.0 `components/models/mimo_v2_flash/model.py`, MiMoV2FlashAttention.forward: values are scaled, a part
of each head is rotated and joined with the rest, and every pair of a query and a key is written, with a mask that the
model has made (`_eager_attention_forward`). Sinks are a buffer, which gets no gradient. Variables of `forward` hold
what was split until it returns, and the layer's the probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.eager_attention import added_mask, from_largest, scores_of, weighted_values
from simcore.recording.tape import Tape, Tensor

__all__ = ["mimo_attention"]


def mimo_attention(tape: Tape, linear: Callable[[Tensor, str], Tensor], x: Tensor, block: Attention, path: str,
                   held: list[Tensor]) -> Tensor:
    """Attention of `x` [batch, sequence, hidden]; returns x's shape.

    `linear`: (input, name of the module) -> output. `path`: name of the module in the layer. `held`: list that gets
    the probabilities, which the layer names until it returns.
    """
    value = block.value or block.head_dim
    sizes_of = ("q", block.head_dim, block.num_heads), ("k", block.head_dim, block.num_kv_heads), (
        "v", value, block.num_kv_heads)
    q, k, v = (aten.to_heads(tape, linear(x, f"{path}.{part}_proj"), size, copy_grad=count > 1)
               for part, size, count in sizes_of)
    v = aten.mul_scalar(tape, v)
    sizes = (block.rotated, block.head_dim - block.rotated)
    (q_rope, q_rest), (k_rope, k_rest) = (aten.split(tape, part, sizes) for part in (q, k))
    q_rope, k_rope = _turned(tape, q_rope), _turned(tape, k_rope)
    q, k = aten.cat(tape, q_rope, q_rest), aten.cat(tape, k_rope, k_rest)
    out = _eager(tape, q, k, v, held if tape.phase != "recompute" else [], with_sinks=block.sinks)
    return linear(out.view(*x.shape[:2], block.num_heads * value), f"{path}.o_proj")


def _turned(tape: Tape, x: Tensor) -> Tensor:
    """`x * cos + rotate_half(x) * sin` of `x` [b, s, heads, d], with the stem's tables."""
    table = Tensor(None, (x.shape[0], x.shape[1], 1, x.shape[3]), x.dtype)
    straight = aten.mul(tape, x, table)
    return aten.add(tape, straight, aten.mul(tape, aten.rotate_half(tape, x), table), "rotary")


def _eager(tape: Tape, q: Tensor, k: Tensor, v: Tensor, held: list[Tensor], *, with_sinks: bool) -> Tensor:
    """Values [b, s, heads, value] weighted by the probabilities of `q` and `k` [b, s, heads, d]."""
    batch, seq, heads = q.shape[:3]
    keys, values = (aten.expand_heads(tape, part, heads // part.shape[2]) for part in (k, v))
    scores = scores_of(tape, q, _stacked(tape, keys, by_heads=k.shape[2] > 1 or heads == 1), [])
    weights = added_mask(tape, scores, Tensor(None, (batch, seq, seq), q.dtype))
    del scores
    square = weights.shape
    if with_sinks:
        weights = _with_sinks(tape, weights)
    weights = from_largest(tape, weights)
    probabilities = aten.cast(tape, aten.softmax(tape, aten.cast(tape, weights, "fp32"), dtype="fp32"), q.dtype)
    if with_sinks:
        probabilities = _without_sinks(tape, probabilities, square)
    held.append(probabilities)
    return weighted_values(tape, probabilities, _stacked(
        tape, values, by_heads=values is not v and v.shape[2] > 1), [])


def _stacked(tape: Tape, x: Tensor, *, by_heads: bool) -> Tensor:
    """Heads of all sequences as one stack: a copy, but of a single sequence or of what is in that memory order."""
    return x if by_heads or x.shape[0] == 1 else aten.contiguous(tape, x, "heads")


def _with_sinks(tape: Tape, x: Tensor) -> Tensor:
    """One column more, the head's sink in every row, cast to the type of `x` first."""
    shape = x.shape
    node = tape.node((x,), (), lambda tape, grads, saved: [None if grads[0] is None else grads[0].view(*shape)])
    _sinks = aten.new(tape, (*shape[:-1], 1), x.dtype, "sinks")
    out = aten.new(tape, (*shape[:-1], shape[-1] + 1), x.dtype, "with_sinks", x.nbytes)
    out.node = node
    return out


def _without_sinks(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view of all columns but the last; its gradient is written into zeros of the whole shape."""
    whole, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, whole, dtype, "grad_slice")]

    return Tensor(x.storage, shape, dtype, tape.node((x,), (), backward))
