"""Linears that ranks share as DeepSpeed's AutoTP has them (0.19.6 `module_inject/layers.py`).

`LinearLayer` (ColumnParallel) has rows of the weight and of the bias: its input's gradient is all-reduced, for each
linear by itself. `LinearAllreduce` (RowParallel) has columns: its product is all-reduced, and a whole bias comes after.
Both sums are in place (`dist.all_reduce` of what is contiguous already), and a bias is a sum of its own (`add_bias`).
`GatherFromTensorParallelRegion` joins the logits of a head.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["column", "row"]

Grads = list[Tensor | None]


def column(tape: Tape, x: Tensor, weight: Param, bias: Param | None, name: str) -> Tensor:
    """This rank's columns [..., n] of the output `name` for `x` [..., k], which is equal on all tp ranks.

    `weight`: [n, k], this rank's rows; `bias`: [n], or None. Backward all-reduces the gradient of `x` in place.
    """
    node = tape.node((x,), (), lambda tape, grads, saved: [_summed(tape, grads)])
    out = aten.linear(tape, Tensor(x.storage, x.shape, x.dtype, node), weight, name)
    return out if bias is None else aten.add(tape, out, bias, f"{name}.biased")


def row(tape: Tape, x: Tensor, weight: Param, bias: Param | None, name: str) -> Tensor:
    """Output `name` [..., n], equal on all tp ranks, for this rank's columns `x` [..., k / tp] of the input.

    `weight`: [n, k / tp]; `bias`: [n], whole, or None. The product is all-reduced in place; its gradient is not.
    """
    part = aten.linear(tape, x, weight, name)
    node = tape.node((part,), (), lambda tape, grads, saved: list(grads))
    tape.collective("all_reduce", "tp", part.nbytes, part.dtype)
    out = Tensor(part.storage, part.shape, part.dtype, node)
    del part
    return out if bias is None else aten.add(tape, out, bias, f"{name}.biased")


def _summed(tape: Tape, grads: Grads) -> Tensor:
    (grad,) = grads
    assert grad is not None
    tape.collective("all_reduce", "tp", grad.nbytes, grad.dtype)
    return grad
