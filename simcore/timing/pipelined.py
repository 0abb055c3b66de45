"""Shares of collectives of tensor parallelism that run in pieces beside the products next to them.

Input: a `Program` and the time of its rows. Output: the hidden share of each distinct row's call.

[Note: products in pieces]
torch (2.13 `distributed/_symmetric_memory/__init__.py`) cuts the rows of a product into n pieces, one for each rank. Of
an all-gather (_pipelined_multi_all_gather_and_consume) the own piece is multiplied first; on two streams in turn each
other one is copied and then multiplied. Of a reduce-scatter (_pipelined_produce_and_all2all) each piece is multiplied
and then copied. Copies do not overlap each other, products neither, so n - 1 of n pieces of the products hide the
copies, as long as they last. Assumed: a copy between two GPUs takes a piece of the time of NCCL's collective, a piece
of a product a piece of its time, and the rest that kernels wait for is that of TransformerEngine's user buffers, which
do the same (`Overlap.tensor`, fitted on its runs alone). The last was added when steps of torchtitan had been seen:
without it those in 16 bits gain twice what was measured.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, AUX, OP, SLOT, STREAM
from simcore.recording.kernel_shape import shapes_in, unpacked
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Op, Stream

__all__ = ["pipelined_shares"]

_PRODUCTS = (int(Kernel.GEMM), int(Kernel.FP8_GEMM))


def pipelined_shares(program: Program, kernel_ns: IntArray, call_ns: Callable[[int, int], int], pieces: int,
                     waited: float) -> NDArray[np.float64]:
    """Share, 0 to 1, of each distinct row's collective on `tp` that the products next to it hide; 0 for other rows.

    `kernel_ns`: ns of each distinct row; `call_ns(comm, payload)`: ns of a call; `pieces`: number of ranks; `waited`:
    share of a call that stays however long the products are. Of equal rows in several places it is the mean. See
    [Note: products in pieces].
    """
    rows = program.distinct
    is_call = (rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE)
    on_device = is_call | (rows[:, OP] == Op.COMPUTE)
    order = program.places[on_device[program.places]]
    is_product = _products(rows)[order]
    ns = np.where(is_product, kernel_ns[order], 0)
    ends, sums = np.append(np.flatnonzero(~is_product), len(order)), np.concatenate([[0], np.cumsum(ns)])
    shares = np.zeros(len(rows))
    for name in ("all_gather", "reduce_scatter"):
        at = np.flatnonzero(_calls(program, name, is_call)[order])
        beside = sums[ends[np.searchsorted(ends, at, side="right")]] - sums[at] if name == "all_gather" else ns[at - 1]
        lengths = np.array([call_ns(*pair) for pair in rows[order[at]][:, [SLOT, AMOUNT]].tolist()], dtype=np.float64)
        np.add.at(shares, order[at], np.minimum(beside * (pieces - 1) / pieces / np.maximum(lengths, 1.0), 1.0))
    return np.minimum(shares / np.maximum(np.bincount(order, minlength=len(rows)), 1), 1.0 - waited)


def _calls(program: Program, name: str, is_call: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for each distinct row that is collective `name` of a block on `tp`; those of the head have no module."""
    of_name = np.array([one == name and axis == "tp" for one, axis, _ in program.tables.comms] or [False])
    found: NDArray[np.bool_] = is_call & (program.distinct[:, AUX] != Module.NONE)
    found[found] = of_name[program.distinct[found, SLOT]]
    return found


def _products(rows: IntArray) -> NDArray[np.bool_]:
    """True for each distinct row that multiplies rows of its first operand: no gradient of a weight."""
    kernels = (rows[:, OP] == Op.COMPUTE) & np.isin(rows[:, SLOT], _PRODUCTS)
    found: NDArray[np.bool_] = kernels & ~unpacked(np.where(kernels, shapes_in(rows[:, STREAM]), 0)).sums_rows
    return found
