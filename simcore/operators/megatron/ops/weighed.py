"""Queries multiplied by a number of their position before attention, in place (Ministral 3 in Megatron-Bridge)."""

from __future__ import annotations

from typing import Final

from simcore.errors import NotYet, Problem
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Tape, Tensor

__all__ = ["weighed"]

_FAMILIES: Final = ("ministral3",)


def weighed(c: Context, x: Tensor) -> Tensor:
    """Queries `x` [tokens, this rank's heads * d] times a number of their position, in their place; of others `x`.

    Megatron-Bridge 067f987d `models/ministral3/ministral3_provider.py:226` (MinistralTEDotProductAttention.forward):
    the node keeps a number a position, made by eight small operators. NotYet where attention's core is recomputed,
    which multiplies the same queries once more.
    """
    if c.kind.family not in _FAMILIES:
        return x
    if c.recomputes("core_attn"):
        raise NotYet(Problem("training.recompute", f"not yet: attention's core of {c.kind.family} recomputed, which "
                             "multiplies the queries that it has multiplied in place (Bridge 067f987d "
                             "models/ministral3/ministral3_provider.py:234)"))
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_query.weighed")
        c.elementwise(grad, 2, operators=1)
        return [grad]

    weights = c.new(c.tokens // c.run.batch, 1, "query.weights")
    out = Tensor(x.storage, x.shape, x.dtype)
    c.elementwise(out, 2, operators=9)
    c.node(out, (x,), (weights,), back)
    return out
