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
from simcore.program.tile import AUX, OP, LayerRows
from simcore.recording.rows import Module, Row, Section
from simcore.recording.tape import Kernel, Op
from simcore.simulate import simulate
from simcore.timing.exchanges import hidden_beside, paired_shares


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
