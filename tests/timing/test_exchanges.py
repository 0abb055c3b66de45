"""Shares of exchanges of tokens that kernels of the other pass of a pair hide, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import small
from frameworks.megatron.asked import OVERLAP, QWEN3_MOE
from simcore.placement.libraries import KernelLibraries
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.tile import AUX, OP, SLOT, LayerRows
from simcore.recording.rows import Module, Row, Section
from simcore.recording.tape import Kernel, Op
from simcore.simulate import simulate
from simcore.timing.exchanges import hidden_beside, paired_shares, shown


def _program(exchange: int = 100) -> Program:
    """A layer's two passes: attention 30 and 60, experts 50 and 150, an exchange before and after the experts."""
    tables = Tables()
    number = tables.comms.setdefault(("all_to_all", "ep", "bf16"), len(tables.comms))
    out = Builder(tables)

    def kernel(module: Module, moved: int) -> Row:
        return int(Op.COMPUTE), 0, int(Kernel.GEMM), 0, int(module), moved

    sent: Row = (int(Op.COLLECTIVE), 0, number, exchange, 0, int(Module.MOE))
    for phase, rows in ((Phase.FORWARD, (kernel(Module.ATTN, 30), sent, kernel(Module.MOE, 50), sent)),
                        (Phase.BACKWARD, (sent, kernel(Module.MOE, 150), sent, kernel(Module.ATTN, 60)))):
        out.at(phase, 0)
        out.tile(LayerRows.of(Section(rows)), 0)
    return small.written(out, "a")


def _kernel_ns(program: Program) -> Any:
    """Kernels take as many ns as they move bytes."""
    return np.where(program.distinct[:, OP] == Op.COMPUTE, program.distinct[:, AUX], 0)


def _of_calls(program: Program, shares: Any) -> list[float]:
    return [round(float(share), 6) for share in shares[program.distinct[:, OP] == Op.COLLECTIVE]]


@pytest.mark.parametrize(("exchange", "forward", "backward"), [
    (100, (60 + 100) / 200, (30 + 50) / 200), (10, 1.0, 1.0), (1000, 210 / 2000, 80 / 2000)])
def test_half_is_beside_attention_and_half_beside_experts_of_the_other_pass(
        exchange: int, forward: float, backward: float) -> None:
    program = _program(exchange)
    shares = paired_shares(program, _kernel_ns(program), lambda comm, payload: payload)
    assert _of_calls(program, shares) == [forward] * 2 + [backward] * 2


@pytest.mark.parametrize(("dispatcher", "slowed"), [("hybridep", 0.2), ("nccl", 0.4)])
def test_kernels_beside_an_exchange_take_longer(dispatcher: str, slowed: float) -> None:
    program, overlap = _program(10), SimpleNamespace(contention=SimpleNamespace(si=0.4), expert=SimpleNamespace(si=0.2))
    shares = hidden_beside(program, _kernel_ns(program), lambda comm, payload: payload, overlap,  # type: ignore[arg-type]
                           KernelLibraries(dispatcher=dispatcher, paired=0.75))
    assert _of_calls(program, shares) == pytest.approx([0.75 * (1 - slowed)] * 4)
    assert hidden_beside(program, _kernel_ns(program), lambda comm, payload: payload, overlap,  # type: ignore[arg-type]
                         KernelLibraries()) is None


def _paged_program() -> Program:
    """A forward and a backward pass of a layer: attention 30 and 60, experts 50 and 150, rows put in order, pages."""
    tables = Tables()
    number = tables.comms.setdefault(("all_to_all", "ep", "bf16"), len(tables.comms))
    out = Builder(tables)

    def kernel(module: Module, moved: int, kind: Kernel = Kernel.GEMM) -> Row:
        return int(Op.COMPUTE), 0, int(kind), 0, int(module), moved

    sent: Row = (int(Op.COLLECTIVE), 0, number, 100, 0, int(Module.MOE))
    moved, paged = kernel(Module.MOE, 20, Kernel.PERMUTE), kernel(Module.SHARED_EXPERTS, 40, Kernel.COPY)
    for phase, rows in ((Phase.FORWARD, (kernel(Module.ATTN, 30), sent, moved, kernel(Module.MOE, 50), paged, sent)),
                        (Phase.BACKWARD, (sent, paged, kernel(Module.MOE, 150), moved, sent, kernel(Module.ATTN, 60)))):
        out.at(phase, 0)
        out.tile(LayerRows.of(Section(rows)), 0)
    return small.written(out, "a")


@pytest.mark.parametrize("dispatcher", ["hybridep", "deepep"])
def test_hybrid_ep_puts_rows_in_order_beside_the_other_pass(dispatcher: str) -> None:
    """Half of two exchanges and a permutation, 110, is beside attention (60, 30), half beside experts (150, 50)."""
    program = _paged_program()
    shares = paired_shares(program, _kernel_ns(program), lambda comm, payload: payload,
                           permutes=dispatcher == "hybridep")
    moves = [round(float(share), 6) for share in shares[program.distinct[:, SLOT] == Kernel.PERMUTE]]
    if dispatcher == "hybridep":
        assert moves == [round((60 + 110) / 220, 6), round((30 + 50) / 220, 6)]
        assert _of_calls(program, shares) == [moves[0]] * 2 + [moves[1]] * 2
    else:  # of 200, beside attention and beside experts with their permutations
        assert moves == [0.0, 0.0]
        assert _of_calls(program, shares) == [(60 + 100) / 200] * 2 + [(30 + 70) / 200] * 2


def test_copies_to_pages_are_beside_attention_and_exchanges() -> None:
    """They are shorter than those, so all of each is hidden but by how much it slows others."""
    program, overlap = _paged_program(), SimpleNamespace(contention=SimpleNamespace(si=0.4))
    shares = hidden_beside(program, _kernel_ns(program), lambda comm, payload: payload, overlap,  # type: ignore[arg-type]
                           KernelLibraries(beside_exchanges=("stash",)))
    assert shares is not None
    of_copies = shares[program.distinct[:, SLOT] == Kernel.COPY]
    assert of_copies == pytest.approx([0.6, 0.6])
    assert shares.sum() == pytest.approx(1.2)
    kernels = np.array([40, 40])
    assert shown(kernels, shares, np.flatnonzero(shares)).tolist() == [16, 16]
    assert shown(kernels, None, kernels).tolist() == [40, 40]


def test_exchanges_of_a_step_are_hidden_in_part() -> None:
    """Three of four microbatches run in pairs, so at least a quarter stays exposed, and less than without pairs."""
    exposed = []
    for options in (OVERLAP, {}):
        report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE, options=options,
                                         global_batch_size=8))
        assert report.time is not None
        sent = next(each for each in report.time.communication if each.collective == "all_to_all")
        exposed.append(sent.exposed_s / sent.alone_s)
    assert 0.25 <= exposed[0] < exposed[1] == pytest.approx(1.0)
