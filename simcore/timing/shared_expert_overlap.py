"""Fraction of each all-to-all that the kernels of a shared expert hide.

If a framework runs the shared expert on a separate stream (`KernelLibraries.shared_beside`), its kernels do not depend
on an all-to-all, and their results are needed only for the sum. In a recording they are on the compute stream, so the
hidden time is subtracted from the all-to-alls of the same pass of the same layer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.kernel_shape import module_of
from simcore.recording.rows import Module
from simcore.recording.tape import Op, Stream

__all__ = ["hidden_shares"]


def hidden_shares(program: Program, kernel_ns: IntArray, call_ns: Callable[[int, int], int],
                  contention: float) -> NDArray[np.float64]:
    """Share, 0 to 1, of each all-to-all's time that the kernels of a shared expert hide; 0 for other rows.

    One entry for each distinct row of the program (equal rows are stored once); all-to-alls of one pass of a layer have
    one share. `kernel_ns`: ns of each distinct row; `call_ns(comm, payload)`: ns of a call. The shorter of the two
    sums, kernels and calls, is hidden, less `contention`, the share by which kernels next to a collective take longer.
    """
    rows = program.distinct
    exchanges = np.array([collective == "all_to_all" for collective, _, _ in program.tables.comms], dtype=np.bool_)
    is_call = (rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE)
    at = np.flatnonzero(is_call)
    at = at[exchanges[rows[at, SLOT]]]
    tiles = np.repeat(np.arange(len(program.tiles) + 1), [*(len(t.rows) for t in program.tiles),
                                                         len(program.outline.loose)])
    is_shared = (rows[:, OP] == Op.COMPUTE) & (module_of(rows[:, STREAM]) == Module.SHARED_EXPERTS)
    shared = np.bincount(tiles[is_shared], weights=kernel_ns[is_shared], minlength=len(program.tiles) + 1)
    lengths = np.array([call_ns(*pair) for pair in rows[at][:, [SLOT, AMOUNT]].tolist()], dtype=np.float64)
    exchanged = np.bincount(tiles[at], weights=lengths, minlength=len(program.tiles) + 1)
    hidden = np.minimum(shared, exchanged) / np.maximum(exchanged, 1.0) * (1.0 - contention)
    shares = np.zeros(len(rows))
    shares[at] = hidden[tiles[at]]
    return shares
