"""Shares of collectives of tensor parallelism that products next to them hide, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import small
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.tile import AUX, OP, LayerRows
from simcore.recording.kernel_shape import MODULE_BITS, shape_of
from simcore.recording.rows import Module, Row, Section
from simcore.recording.tape import Kernel, Op
from simcore.timing.pipelined import pipelined_shares

RANKS = 4


def _program(rows: Sequence[tuple[Any, ...]]) -> Program:
    """Rows of a forward pass: (collective, payload), ("head", payload) or (kernel, ns) with "grad" for a weight's."""
    tables = Tables()
    out = Builder(tables)
    made: list[Row] = []
    for what, amount in rows:
        if what in ("all_gather", "reduce_scatter", "head"):
            name = "all_gather" if what == "head" else what
            comm = tables.comms.setdefault((name, "tp", "bf16"), len(tables.comms))
            module = Module.NONE if what == "head" else Module.MLP
            made.append((int(Op.COLLECTIVE), 0, comm, amount, 0, int(module)))
        else:
            kernel = Kernel.GEMM if what == "grad" else what
            shape = shape_of(8, 8, sums_rows=what == "grad") << MODULE_BITS
            made.append((int(Op.COMPUTE), 0, int(kernel), 0, shape | int(Module.MLP), amount))
    out.at(Phase.FORWARD, 0)
    out.tile(LayerRows.of(Section(tuple(made))), 0)
    return small.written(out, "a")


def _shares(rows: Sequence[tuple[Any, ...]], waited: float = 0.0) -> list[float]:
    """Shares of the calls in the order of distinct rows; kernels and calls take as many ns as their amounts."""
    program = _program(rows)
    kernel_ns = np.where(program.distinct[:, OP] == Op.COMPUTE, program.distinct[:, AUX], 0)
    shares = pipelined_shares(program, kernel_ns, lambda comm, payload: payload, RANKS, waited)
    is_call = program.distinct[:, OP] == Op.COLLECTIVE
    assert not shares[~is_call].any()
    return [round(float(share), 6) for share in shares[is_call]]


def test_all_products_behind_an_all_gather_hide_it_but_for_the_first_piece() -> None:
    assert _shares([("all_gather", 1000), (Kernel.GEMM, 300), (Kernel.GEMM, 100), (Kernel.NORM, 7000)]) == [0.3]


def test_the_gradient_of_a_weight_does_not_read_pieces() -> None:
    assert _shares([("all_gather", 1000), (Kernel.FP8_GEMM, 400), ("grad", 400)]) == [0.3]


def test_the_product_before_a_reduce_scatter_hides_it() -> None:
    assert _shares([(Kernel.GEMM, 999), (Kernel.GEMM, 400), ("reduce_scatter", 1000)]) == [0.3]


def test_a_reduce_scatter_of_sums_is_not_hidden() -> None:
    assert _shares([(Kernel.GEMM, 400), (Kernel.ELEMENTWISE, 1), ("reduce_scatter", 1000)]) == [0.0]


def test_the_heads_collective_is_not_hidden() -> None:
    assert _shares([("head", 1000), (Kernel.GEMM, 400)]) == [0.0]


@pytest.mark.parametrize(("waited", "share"), [(0.0, 1.0), (0.4, 0.6)])
def test_long_products_hide_all_but_what_is_waited_for(waited: float, share: float) -> None:
    assert _shares([("all_gather", 100), (Kernel.GEMM, 5000)], waited) == [share]
