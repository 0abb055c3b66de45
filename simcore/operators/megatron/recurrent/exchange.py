"""Exchange of positions for heads around main's gated delta net under context parallelism, and back.

Megatron-LM d98e8a64 `ssm/gated_delta_net/common.py` (a2a_cp_to_hp, a2a_hp_to_cp) and `ssm/mamba_context_parallel.py`.
Before the convolution columns are put in an order in which each rank's lie together, exchanged, and attention's order
of positions is undone; behind the gated norm it goes the other way. A rank then has cp times the positions and a cp-th
of the heads: as many elements, which are counted as its own positions of all heads. The steps of an exchange are held
by the functions that call it until it is over.
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["to_heads", "to_positions"]


def to_heads(c: Context, x: Tensor) -> Tensor:
    """`x` [tokens, columns] of all positions of the rank's heads; `x` itself without context parallelism."""
    if c.run.cp == 1:
        return x
    permuted = _moved(c, x, "permuted", zeros=True)
    sent = _exchanged(c, _moved(c, permuted, "to_send"))
    return _moved(c, sent, "in_order")


def to_positions(c: Context, x: Tensor) -> Tensor:
    """The other way."""
    if c.run.cp == 1:
        return x
    ordered = _moved(c, x, "to_send")
    came = _exchanged(c, ordered)
    return _moved(c, came, "side_by_side")


def _exchanged(c: Context, x: Tensor) -> Tensor:
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_delta.exchanged")
        c.send("all_to_all", "cp", grad)
        return [grad]

    out = c.new(rows, columns, "delta.exchanged")
    c.send("all_to_all", "cp", out)
    c.node(out, (x,), (), back)
    return out


def _moved(c: Context, x: Tensor, name: str, *, zeros: bool = False) -> Tensor:
    """A copy in another order. `zeros`: backward adds the gradient to zeros, out of place (index_select)."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        _around = c.new(rows, columns, f"grad_delta.{name}.zeros") if zeros else None
        grad = c.new(rows, columns, f"grad_delta.{name}")
        c.elementwise(grad, 2 + 3 * zeros, Kernel.PERMUTE, operators=1 + zeros)
        return [grad]

    out = c.new(rows, columns, f"delta.{name}")
    c.elementwise(out, 2, Kernel.PERMUTE, operators=1)
    c.node(out, (x,), (), back)
    return out
