"""Shares of messages around a ring that attention's kernels beside them hide.

Input: a `Program` and the time of its rows. Output: the hidden share of each distinct row's message.

[Note: messages beside attention]
TransformerEngine (2.8 and 2.18 `context_parallel.py`, AttnFuncWithCPAndKVP2P) posts the message of each step of a ring
on NCCL's stream, then computes attention of the keys that it has, and waits for the message before the next step, or in
backward after the kernel. So a message is hidden as long as the next kernel of attention lasts, less the share by which
kernels beside a collective take longer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.tape import Kernel, Op, Stream

__all__ = ["ring_shares"]

_ATTENTION = (int(Kernel.ATTENTION), int(Kernel.FP8_ATTENTION))


def ring_shares(program: Program, kernel_ns: IntArray, call_ns: Callable[[int, int], int]) -> NDArray[np.float64]:
    """Share, 0 to 1, of each distinct row's message on `cp` that the next kernel of attention lasts; 0 for other rows.

    `kernel_ns`: ns of each distinct row; `call_ns(comm, payload)`: ns of a call. See [Note: messages beside attention].
    """
    rows = program.distinct
    shares = np.zeros(len(rows))
    named = [kind == "send_recv" and axis.startswith("cp") for kind, axis, _ in program.tables.comms]
    is_message = np.array(named or [False])
    at = np.flatnonzero((rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE))
    at = at[is_message[rows[at, SLOT]]]
    kernels = np.flatnonzero((rows[:, OP] == Op.COMPUTE) & np.isin(rows[:, SLOT], _ATTENTION))
    if not (len(at) and len(kernels)):
        return shares
    beside = kernel_ns[kernels[np.minimum(np.searchsorted(kernels, at), len(kernels) - 1)]]
    lengths = np.array([call_ns(*pair) for pair in rows[at][:, [SLOT, AMOUNT]].tolist()], dtype=np.float64)
    shares[at] = np.minimum(beside / np.maximum(lengths, 1.0), 1.0)
    return shares
