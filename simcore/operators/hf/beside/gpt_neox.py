"""Attention of GPT-NeoX (transformers 5.23 `models/gpt_neox`).

Query, key and value of a head come one after another in one product. Both are rotated before either is joined with what
is not, even where that is nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["attention"]


def attention(tape: Tape, block: Attention, x: Tensor, tables: tuple[Tensor, Tensor],
              linear: Callable[[str, Tensor], Tensor], core: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Output of `GPTNeoXAttention` for `x` [batch, seq, hidden], in its shape; `tables`: cosines and sines.

    `linear`: (name in the module, x) -> output; `core`: (query, key, value) by heads -> output by heads.
    """
    dim = block.head_dim
    qkv = aten.to_heads(tape, linear("query_key_value", x), 3 * dim, copy_grad=True)
    q, k, v = aten.split(tape, qkv, [dim] * 3)
    q, k = _rotated(tape, q, k, *tables)
    out = core(q, k, v)
    return linear("dense", out.view(*out.shape[:2], block.q_size))


def _rotated(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    (q_turned, q_rest), (k_turned, k_rest) = (_parts(tape, x, cos.shape[-1]) for x in (q, k))
    q_out, k_out = aten.rotate_halves(tape, q_turned, cos, sin), aten.rotate_halves(tape, k_turned, cos, sin)
    q_out = aten.cat(tape, q_out, aten.cast(tape, q_rest, q_out.dtype))  # autocast joins in the wider type
    k_out = aten.cat(tape, k_out, aten.cast(tape, k_rest, k_out.dtype))
    return q_out, k_out


def _parts(tape: Tape, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A slice of everything is the tensor itself (torch 2.13 `TensorIndexing.h`, applySlice)."""
    dim = x.shape[-1]
    return (x if size == dim else aten.slice_last(tape, x, size)), aten.slice_last(tape, x, dim - size)
