"""Rows of torchtitan 0.2.2's experts (`models/moe/utils.py`): each expert's filled up to a multiple of 8, and put back.

DeepSpeed's experts (`autoep.py`) are a copy of these, line for line.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["pad_rows", "padded_rows", "put_rows", "unpad_rows"]

ALIGNMENT = 8
"""Rows (`models/moe/utils.py`, TOKEN_GROUP_ALIGN_SIZE_M)."""
Grads = list[Tensor | None]


def padded_rows(rows: int, experts: int) -> int:
    """Returns the most rows that experts have, each with a multiple of ALIGNMENT."""
    return -(-(rows + experts * ALIGNMENT) // ALIGNMENT) * ALIGNMENT


def pad_rows(tape: Tape, x: Tensor, places: Tensor) -> Tensor:
    """Records rows of `x` [rows, hidden] at `places` [padded], which name a row of zeros too; returns them."""
    return aten.index(tape, _with_a_row_more(tape, x), places, "padded")


def unpad_rows(tape: Tape, x: Tensor, places: Tensor, shape: tuple[int, int]) -> Tensor:
    """Records `x` [padded, hidden] put back at `places` into `shape` [rows + 1, hidden]; returns it without its last.

    The last row takes what was filled up.
    """
    return _without_last(tape, put_rows(tape, tape.empty(shape, x.dtype, "unpermuted"), places, x))


def _with_a_row_more(tape: Tape, x: Tensor) -> Tensor:
    """`vstack((x, zeros))`; gradients of x are a view."""
    rows, hidden = x.shape

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and grad.view(rows, hidden)]

    _zeros = aten.new(tape, (hidden,), x.dtype, "zeros")
    node = tape.node((x,), (), backward)
    out = aten.new(tape, (rows + 1, hidden), x.dtype, "with_a_row_more", x.nbytes, Kernel.COPY)
    out.node = node
    return out


def _without_last(tape: Tape, x: Tensor) -> Tensor:
    """`x[:-1]`, a view; its gradient is written into zeros of the whole shape."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_slice")])
    return Tensor(x.storage, (shape[0] - 1, shape[1]), dtype, node)


def put_rows(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Records `into[rows] = x` of constants `into`, and returns it; the row numbers are saved."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (rows,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_put", num_bytes, Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, 0, 2 * num_bytes)
    return Tensor(into.storage, into.shape, dtype, node)
