"""Shares of exchanges of tokens between experts, and of kernels on streams of their own, that others hide.

Input: a `Program`, the time of its rows, and what the framework runs beside exchanges. Output: the hidden share of each
distinct row's call or kernel.

[Note: exchanges of pairs]
Under `overlap_moe_expert_parallel_comm` Megatron-Core runs a forward pass of one microbatch and a backward pass of
another layer by layer in turn, exchanges on a stream of their own (main 2026-08-22
`models/common/model_chunk_schedule_plan.py`, TransformerLayerSchedulePlan.run). So the exchange back to the tokens in
backward runs beside attention, router and shared expert of the forward pass, the exchange to the experts in forward
beside the experts of the backward pass, and the other way round. Of an exchange the shorter of both is hidden, less the
share by which kernels take longer: the exchange has multiprocessors of its own (Bridge 067f987d `perf_recipes`: 16 or
32 of 148; DeepEP 20 of 132), NCCL's as in any other collective. Passes that run alone, at the start and the end of a
step, hide nothing; here every pass hides its part of what all do. Dense layers are counted with the others.

HybridEP puts rows in the order of experts, and sums them, in the same two calls that exchange them (d98e8a64
`transformer/moe/fused_a2a.py`, HybridEPDispatch and HybridEPCombine: dispatch_with_permute, combine_with_unpermute), so
that these kernels are on the stream of exchanges and are hidden with them; DeepEP's are with the experts
(`transformer/moe/token_dispatcher.py`, dispatch_postprocess).

[Note: copies to pages]
Copies of what experts keep to pages, and back, have a stream of their own, which waits for the experts and for which
the experts of the next layer wait (d98e8a64 `transformer/moe/paged_stash.py`, PagedStashManager: pack_stream,
wait_for_stash_to_complete). The kernels of the pass before experts, and its exchanges, hide them, less the share by
which kernels beside others take longer.
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
from simcore.recording.tape import Kernel, Op, Stream
from simcore.timing.pipelined import pipelined_shares
from simcore.timing.rings import ring_shares
from simcore.timing.streams import hidden_shares

__all__ = ["hidden_beside", "paired_shares", "shown"]

_BEFORE = (int(Module.ATTN), int(Module.MOE_ROUTER), int(Module.MOE_PREPROCESS), int(Module.SHARED_EXPERTS))
"""Modules that run before tokens are sent."""
_BACKWARD = (int(Phase.BACKWARD), int(Phase.RECOMPUTE))
Times = Callable[[int, int], int]


def hidden_beside(program: Program, kernel_ns: IntArray, call_ns: Times, overlap: Overlap,
                  libraries: KernelLibraries) -> NDArray[np.float64] | None:
    """Share, 0 to 1, of each distinct row's exchange or kernel that others hide; None if the framework hides nothing.

    `kernel_ns`: ns of each distinct row; `call_ns(comm, payload)`: ns of a call.
    """
    contention = overlap.contention.si
    shares = None
    if "shared_experts" in libraries.beside_exchanges:
        shares = hidden_shares(program, kernel_ns, call_ns, contention)
    if libraries.paired:
        slowed = contention if libraries.dispatcher == "nccl" else overlap.expert.si
        permutes = libraries.dispatcher == "hybridep"
        paired = paired_shares(program, kernel_ns, call_ns, permutes=permutes) * libraries.paired * (1.0 - slowed)
        shares = paired if shares is None else 1.0 - (1.0 - shares) * (1.0 - paired)
    if libraries.pipelined:
        shares = pipelined_shares(program, kernel_ns, call_ns, libraries.pipelined, overlap.tensor.si)
    if libraries.beside_attention:
        shares = np.zeros(len(program.distinct)) if shares is None else shares
        shares += ring_shares(program, kernel_ns, call_ns) * (1.0 - contention)
    if "stash" in libraries.beside_exchanges:
        shares = np.zeros(len(program.distinct)) if shares is None else shares
        shares += _paged_shares(program, kernel_ns, call_ns) * (1.0 - contention)
    return shares


def shown(ns: IntArray, hidden: NDArray[np.float64] | None, rows: IntArray) -> IntArray:
    """Ns of kernels, less what others hide of them. `rows`: distinct row of each; `hidden`: share of each such row."""
    return ns if hidden is None else (ns * (1.0 - hidden[rows])).astype(np.int64)


def paired_shares(program: Program, kernel_ns: IntArray, call_ns: Times, *, permutes: bool = False,
                  ) -> NDArray[np.float64]:
    """Share of each distinct row's exchange that kernels of the other pass of a pair last; 0 for other rows.

    All exchanges of a direction, forward or backward, have one share; half of them are to the experts and half back.
    `permutes`: permutations are parts of exchanges. See [Note: exchanges of pairs].
    """
    rows = program.distinct
    often = np.bincount(program.places, minlength=len(rows))
    is_backward = _in_backward(program)
    modules = np.where(rows[:, OP] == Op.COMPUTE, module_of(rows[:, STREAM]), 0)
    moves = (modules == Module.MOE) & (rows[:, SLOT] == Kernel.PERMUTE) & permutes
    is_before, is_expert = np.isin(modules, _BEFORE) & ~_paged(program), (modules == Module.MOE) & ~moves
    at = np.concatenate([_exchanges(program), np.flatnonzero(moves)])
    spent = kernel_ns * often
    lengths = (_exchanged(program, call_ns) + np.where(moves, kernel_ns, 0)) * often
    shares = np.zeros(len(rows))
    for backward in (False, True):
        here, other = at[is_backward[at] == backward], is_backward != backward
        half = float(lengths[here].sum()) / 2
        if half:
            beside = (float(spent[other & part].sum()) for part in (is_before, is_expert))
            shares[here] = sum(min(kernels, half) for kernels in beside) / (2 * half)
    return shares


def _paged_shares(program: Program, kernel_ns: IntArray, call_ns: Times) -> NDArray[np.float64]:
    """Share of each copy to pages and back that others of its direction last; 0 for other rows.

    See [Note: copies to pages].
    """
    rows = program.distinct
    spent = (kernel_ns + _exchanged(program, call_ns)) * np.bincount(program.places, minlength=len(rows))
    is_copy, is_backward = _paged(program), _in_backward(program)
    is_kernel = rows[:, OP] == Op.COMPUTE
    others = ~is_copy & (~is_kernel | np.isin(np.where(is_kernel, module_of(rows[:, STREAM]), 0), _BEFORE))
    shares = np.zeros(len(rows))
    for backward in (False, True):
        here, beside = is_copy & (is_backward == backward), others & (is_backward == backward)
        copies = float(spent[here].sum())
        shares[here] = min(copies, float(spent[beside].sum())) / max(copies, 1.0)
    return shares


def _paged(program: Program) -> NDArray[np.bool_]:
    """True for each distinct row that copies to pages or back."""
    rows = program.distinct
    is_copy = (rows[:, OP] == Op.COMPUTE) & (rows[:, SLOT] == Kernel.COPY)
    found: NDArray[np.bool_] = is_copy & (np.where(is_copy, module_of(rows[:, STREAM]), 0) == Module.SHARED_EXPERTS)
    return found


def _in_backward(program: Program) -> NDArray[np.bool_]:
    """True for each distinct row of a backward pass."""
    phase = np.zeros(len(program.distinct), dtype=np.int64)
    phase[program.places] = program.phase
    return np.isin(phase, _BACKWARD)


def _exchanges(program: Program) -> IntArray:
    """Numbers of the distinct rows that exchange tokens."""
    rows = program.distinct
    is_exchange = np.array([collective == "all_to_all" for collective, _, _ in program.tables.comms], dtype=np.bool_)
    at = np.flatnonzero((rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE))
    found: IntArray = at[is_exchange[rows[at, SLOT]]]
    return found


def _exchanged(program: Program, call_ns: Times) -> NDArray[np.float64]:
    """Ns of each distinct row's exchange; 0 for other rows."""
    at = _exchanges(program)
    lengths = np.zeros(len(program.distinct))
    lengths[at] = [call_ns(*pair) for pair in program.distinct[at][:, [SLOT, AMOUNT]].tolist()]
    return lengths
