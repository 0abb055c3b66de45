"""Attention over sequences that ranks share, by exchanges around it (DeepSpeed-Ulysses), as verl's patch does it.

[Note: Ulysses]
verl b178a3cd `models/transformers/monkey_patch.py:91` _ulysses_flash_attention_forward, `utils/ulysses.py`
all_to_all_tensor. Query, key and value of a rank's tokens are exchanged, each by itself, for those of all tokens of a
part of the heads; the output goes back. Each exchange copies the parts of heads that it sends, receives into new
tensors, and joins these in another; parts of a row of tokens are views. Heads of keys and values are repeated where
they are fewer than the ranks. Positions are gathered in each layer (8 bytes a token, whose tensors are not counted).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["over_ranks"]

_AXIS: Final = "cp"
_POSITION: Final = 8
"""Bytes of a position id."""


def over_ranks(tape: Tape, ranks: int, parts: tuple[Tensor, Tensor, Tensor],
               core: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Attention of `parts` (query, key, value), each [b, s / ranks, heads, d], by `core` over [b, s, heads / ranks, d].

    Returns a tensor of query's shape.
    """
    query, key, value = parts
    few = max(1, ranks // key.shape[2])
    key, value = (aten.repeat_heads(tape, one, few) for one in (key, value))
    shape = query.shape
    query, key, value = (_exchanged(tape, one, _by_heads(one, ranks), copies=True) for one in (query, key, value))
    tape.collective("all_gather", _AXIS, _POSITION * query.shape[0] * query.shape[1], "int64")
    return _exchanged(tape, core(query, key, value), shape, copies=False)


def _by_heads(x: Tensor, ranks: int) -> tuple[int, ...]:
    batch, seq, heads, dim = x.shape
    return batch, seq * ranks, heads // ranks, dim


def _exchanged(tape: Tape, x: Tensor, shape: tuple[int, ...], *, copies: bool) -> Tensor:
    """Tensor of `shape` from an exchange of `x`; `copies`: what is sent is copied first. Backward sends it back."""
    own, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [_sent(tape, own, dtype, copies=not copies)])
    out = _sent(tape, shape, dtype, copies=copies)
    out.node = node
    return out


def _sent(tape: Tape, shape: tuple[int, ...], dtype: str, *, copies: bool) -> Tensor:
    """Result of one exchange, of as many bytes as it sends."""
    sent = aten.new(tape, shape, dtype, "exchange_sent") if copies else None
    received = tape.empty(shape, dtype, "exchange_received")
    tape.collective("all_to_all", _AXIS, received.nbytes, dtype)
    out = aten.new(tape, shape, dtype, "exchanged", received.nbytes)
    del sent, received
    return out
