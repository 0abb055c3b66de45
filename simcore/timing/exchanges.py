"""Shares of exchanges of tokens between experts that kernels hide.

Input: a `Program`, the time of its rows, and what the framework runs beside exchanges. Output: the hidden share of each
distinct row's call.

[Note: exchanges of pairs]
Under `overlap_moe_expert_parallel_comm` Megatron-Core runs a forward pass of one microbatch and a backward pass of
another layer by layer in turn, exchanges on a stream of their own (main 2026-08-22
`models/common/model_chunk_schedule_plan.py`, TransformerLayerSchedulePlan.run). So the exchange back to the tokens in
backward runs beside attention, router and shared expert of the forward pass, the exchange to the experts in forward
beside the experts of the backward pass, and the other way round. Of an exchange the shorter of both is hidden, less the
share by which kernels take longer: the exchange has multiprocessors of its own (Bridge 067f987d `perf_recipes`: 16 or
32 of 148; DeepEP 20 of 132), NCCL's as in any other collective. Passes that run alone, at the start and the end of a
step, hide nothing; here every pass hides its part of what all do. Dense layers are counted with the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simcore.hardware.efficiency import Overlap
from simcore.placement.libraries import KernelLibraries
from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.kernel_shape import module_of
from simcore.recording.rows import Module
from simcore.recording.tape import Op, Stream
from simcore.timing.streams import hidden_shares

__all__ = ["hidden_beside", "paired_shares"]

_BEFORE = (int(Module.ATTN), int(Module.MOE_ROUTER), int(Module.MOE_PREPROCESS), int(Module.SHARED_EXPERTS))
"""Modules that run before tokens are sent."""
_BACKWARD = (int(Phase.BACKWARD), int(Phase.RECOMPUTE))
Times = Callable[[int, int], int]


def hidden_beside(program: Program, kernel_ns: IntArray, call_ns: Times, overlap: Overlap,
                  libraries: KernelLibraries) -> NDArray[np.float64] | None:
    """Share, 0 to 1, of each distinct row's exchange that kernels hide; None if the framework hides nothing.

    `kernel_ns`: ns of each distinct row; `call_ns(comm, payload)`: ns of a call.
    """
    contention = overlap.contention.si
    shares = None
    if libraries.beside_exchanges:
        shares = hidden_shares(program, kernel_ns, call_ns, contention, libraries.beside_exchanges)
    if libraries.paired:
        slowed = contention if libraries.dispatcher == "nccl" else overlap.expert.si
        paired = paired_shares(program, kernel_ns, call_ns) * libraries.paired * (1.0 - slowed)
        shares = paired if shares is None else 1.0 - (1.0 - shares) * (1.0 - paired)
    return shares


def paired_shares(program: Program, kernel_ns: IntArray, call_ns: Times) -> NDArray[np.float64]:
    """Share of each distinct row's exchange that kernels of the other pass of a pair last; 0 for other rows.

    All exchanges of a direction, forward or backward, have one share; half of them are to the experts and half back.
    See [Note: exchanges of pairs].
    """
    rows, places = program.distinct, program.places
    often = np.bincount(places, minlength=len(rows))
    phase = np.zeros(len(rows), dtype=np.int64)
    phase[places] = program.phase
    is_backward = np.isin(phase, _BACKWARD)
    modules = np.where(rows[:, OP] == Op.COMPUTE, module_of(rows[:, STREAM]), 0)
    is_before, is_expert = np.isin(modules, _BEFORE), modules == Module.MOE
    exchanges = np.array([collective == "all_to_all" for collective, _, _ in program.tables.comms], dtype=np.bool_)
    is_call = (rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE)
    at = np.flatnonzero(is_call)
    at = at[exchanges[rows[at, SLOT]]]
    spent = kernel_ns * often
    lengths = np.array([call_ns(*pair) for pair in rows[at][:, [SLOT, AMOUNT]].tolist()], dtype=np.float64)
    shares = np.zeros(len(rows))
    for backward in (False, True):
        here, other = at[is_backward[at] == backward], is_backward != backward
        half = float((lengths[is_backward[at] == backward] * often[here]).sum()) / 2
        if half:
            beside = (float(spent[other & part].sum()) for part in (is_before, is_expert))
            shares[here] = sum(min(kernels, half) for kernels in beside) / (2 * half)
    return shares
