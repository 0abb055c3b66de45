"""Shares of messages around a ring that attention beside them hides, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import small
from simcore.placement.libraries import KernelLibraries
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.tile import AUX, OP, LayerRows
from simcore.recording.rows import Module, Row, Section
from simcore.recording.tape import Kernel, Op
from simcore.timing.exchanges import hidden_beside
from simcore.timing.rings import ring_shares

MESSAGE = ("send_recv", "cp", "bf16")


def _program() -> Program:
    """Two steps of a ring (attention 60, a merge 1000, attention of 8 bits 200), a product, a message to a stage."""
    tables = Tables()
    out = Builder(tables)
    numbers = {name: tables.comms.setdefault(name, len(tables.comms)) for name in (
        MESSAGE, ("all_gather", "cp", "bf16"), ("send_recv", "pp", "bf16"))}

    def sent(name: tuple[str, str, str], size: int) -> Row:
        return int(Op.COLLECTIVE), 0, numbers[name], size, 0, int(Module.ATTN)

    def kernel(kind: Kernel, moved: int) -> Row:
        return int(Op.COMPUTE), 0, int(kind), 0, int(Module.ATTN), moved

    out.at(Phase.FORWARD, 0)
    out.tile(LayerRows.of(Section((
        sent(MESSAGE, 80), kernel(Kernel.ATTENTION, 60), sent(MESSAGE, 100), kernel(Kernel.ELEMENTWISE, 1000),
        kernel(Kernel.FP8_ATTENTION, 200), sent(("all_gather", "cp", "bf16"), 10), kernel(Kernel.GEMM, 500),
        sent(("send_recv", "pp", "bf16"), 10), kernel(Kernel.ATTENTION, 50)))), 0)
    return small.written(out, "a")


def _given(program: Program) -> tuple[Any, Any]:
    """Kernels take as many ns as they move bytes, calls as many as they send."""
    return np.where(program.distinct[:, OP] == Op.COMPUTE, program.distinct[:, AUX], 0), lambda comm, payload: payload


def test_the_next_kernel_of_attention_hides_a_message() -> None:
    """60 of 80; all of 100, beside 200, whatever is merged before; neither a gather nor a stage's message."""
    program = _program()
    shares = ring_shares(program, *_given(program))
    assert shares[program.distinct[:, OP] == Op.COLLECTIVE].tolist() == [0.75, 1.0, 0.0, 0.0]
    assert not shares[program.distinct[:, OP] == Op.COMPUTE].any()


def test_kernels_beside_a_message_take_longer_and_torchs_ring_waits() -> None:
    program, overlap = _program(), SimpleNamespace(contention=SimpleNamespace(si=0.4), expert=SimpleNamespace(si=0.0))
    hidden = hidden_beside(program, *_given(program), overlap, KernelLibraries(beside_attention=True))  # type: ignore[arg-type]
    assert hidden is not None
    assert np.allclose(hidden[program.distinct[:, OP] == Op.COLLECTIVE], [0.45, 0.6, 0, 0])
    assert hidden_beside(program, *_given(program), overlap, KernelLibraries()) is None  # type: ignore[arg-type]


def test_a_program_without_rings_hides_nothing() -> None:
    out = Builder(Tables())
    out.at(Phase.FORWARD, 0)
    out.tile(LayerRows.of(Section(((int(Op.COMPUTE), 0, int(Kernel.ATTENTION), 0, 0, 7),))), 0)
    program = small.written(out, "a")
    assert not ring_shares(program, *_given(program)).any()
