"""Attention over sequences that ranks share, as DeepSpeed's class for transformers does it (Ulysses, ALST).

[Note: ALST] deepspeed 0.19.6 (edaa72212) `runtime/sequence_parallel/ulysses_sp.py` UlyssesSPAttentionHF.forward.
Query, key and value of a rank's tokens are copied part of heads by part, exchanged one after another
(`sequence/layer.py` _DimZeroAllToAll), then copied by heads for the kernel; its output is copied back by tokens,
exchanged, and copied again. With one head a rank the copies by heads are views, and a gradient is copied where its
projection was viewed by heads. Of several rows (b > 1) the output is copied once more before its exchange, as rows and
tokens change places, and transformers copies what the function returns. Heads of keys and values are repeated before
where they are fewer than the ranks.
Backward of an exchange makes a tensor in the memory order of a gradient that is not contiguous, its contiguous copy
(`torch.empty_like(input).contiguous()`), and a copy of the gradient. Positions of all ranks are gathered in each layer,
then joined; both stay until it returns. torch 2.13 `attention_backward.cu` (_flash_attention_backward) copies an output
that lies by heads before its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["over_shared"]

_AXIS: Final = "cp"


def over_shared(tape: Tape, ranks: int, parts: tuple[Tensor, Tensor, Tensor],
                core: Callable[[Tensor, Tensor, Tensor], Tensor], *, copies_once: bool = False) -> Tensor:
    """Attention of `parts` (query, key, value), each [b, s / ranks, heads, d], by `core` over [b, s, heads / ranks, d].

    Returns a tensor of query's shape. What `core` gets lies by heads, and so does its output; see [Note: ALST].
    `copies_once`: transformers does not copy the output of `core` (flash-attn's), and so the function's own copy for
    the exchange is the only one.
    """
    query, key, value = parts
    batch, seq = query.shape[:2]
    gathered = [tape.empty((batch, seq), "int64", "gathered_positions") for _ in range(ranks)]
    num_bytes = ranks * gathered[0].nbytes
    tape.collective("all_gather", _AXIS, num_bytes, "int64")
    _positions = aten.new(tape, (batch, ranks * seq), "int64", "positions", num_bytes, Kernel.COPY)
    shape, few = query.shape, max(1, ranks // key.shape[2])
    by_heads = query.shape[2] > ranks
    several = batch > 1
    query = _of_heads(tape, query, ranks)
    key = _of_heads(tape, aten.repeat_heads(tape, key, few), ranks)
    value = _of_heads(tape, aten.repeat_heads(tape, value, few), ranks)
    query, key, value = _by_heads(tape, query), _by_heads(tape, key), _by_heads(tape, value)
    context = core(query, key, value)
    del query, key, value
    if by_heads and not copies_once:
        context = aten.contiguous(tape, context, "attention_by_tokens")
    is_copied = several or (by_heads and copies_once)
    sent = aten.contiguous(tape, context, "exchange_sent") if is_copied else context
    received = _exchanged(tape, sent, shape, strided=True)
    return aten.contiguous(tape, received, "exchanged")


def _of_heads(tape: Tape, x: Tensor, ranks: int) -> Tensor:
    """All tokens of a part of the heads of `x` [b, s / ranks, heads, d]: [b, s, heads / ranks, d]."""
    batch, seq, heads, dim = shape = x.shape
    several, dtype = heads > ranks, x.dtype

    def backward(tape: Tape, grads: aten.Grads, saved: list[Tensor]) -> aten.Grads:
        (grad,) = grads
        assert grad is not None
        return [aten.new(tape, shape, dtype, "grad_exchanged", grad.nbytes, Kernel.COPY) if several
                else grad.view(*shape)]

    node = tape.node((x,), (), backward)
    sent = aten.contiguous(tape, Tensor(x.storage, shape, dtype, node), "exchange_sent")
    del x
    return _exchanged(tape, sent, (batch, seq * ranks, heads // ranks, dim), strided=several or batch > 1)


def _by_heads(tape: Tape, x: Tensor) -> Tensor:
    """Copy of `x` [b, s, heads, d] by heads; one head of one row lies so already."""
    return aten.contiguous(tape, x, "heads") if x.shape[2] > 1 or x.shape[0] > 1 else x


def _exchanged(tape: Tape, x: Tensor, shape: tuple[int, ...], *, strided: bool) -> Tensor:
    """Tensor of `shape` from an exchange of the contiguous `x`; `strided`: its gradient is not contiguous."""
    own, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: aten.Grads, saved: list[Tensor]) -> aten.Grads:
        if not strided:
            received = tape.empty(own, dtype, "exchange_received")
        else:
            like = tape.empty(own, dtype, "exchange_like")
            received = aten.new(tape, own, dtype, "exchange_received", like.nbytes, Kernel.COPY)
            del like
            sent = aten.new(tape, own, dtype, "exchange_sent", received.nbytes, Kernel.COPY)
        tape.collective("all_to_all", _AXIS, received.nbytes, dtype)
        if strided:
            del sent
        return [received]

    node = tape.node((x,), (), backward)
    received = tape.empty(shape, dtype, "exchange_received")
    tape.collective("all_to_all", _AXIS, received.nbytes, dtype)
    received.node = node
    return received
