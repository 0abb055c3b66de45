"""Fractions of all-to-alls that a shared expert hides, counted by hand and in a full step."""

from __future__ import annotations

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
from simcore.simulate import simulate
from simcore.timing.streams import hidden_shares


def _program(*, shared: int, calls: tuple[int, ...], collective: str = "all_to_all") -> Program:
    tables = Tables()
    number = tables.comms.setdefault((collective, "ep", "bf16"), len(tables.comms))
    out = Builder(tables)
    out.at(Phase.FORWARD, 0)
    module = int(Module.SHARED_EXPERTS) | shape_of(64, 64) << MODULE_BITS
    rows: list[Row] = [(int(Op.COMPUTE), 0, int(Kernel.GEMM), 0, module, shared),
                       (int(Op.COMPUTE), 0, int(Kernel.GROUPED_GEMM), 0, int(Module.MOE), 1000)]
    rows += [(int(Op.COLLECTIVE), 0, number, payload, 0, int(Module.MOE)) for payload in calls]
    out.tile(LayerRows.of(Section(tuple(rows))), 0)
    return small.written(out, "a")


def _hidden(program: Program, contention: float = 0.0) -> list[float]:
    """Kernels take as many ns as they move bytes, calls as many as their payload."""
    rows = program.distinct
    ns = np.where(rows[:, OP] == Op.COMPUTE, rows[:, AUX], 0)
    shares = hidden_shares(program, ns, lambda comm, payload: payload, contention)
    return [round(float(share), 6) for share in shares[rows[:, OP] == Op.COLLECTIVE]]


@pytest.mark.parametrize(("shared", "contention", "expected"), [
    (50, 0.0, [0.25, 0.25]), (50, 0.4, [0.15, 0.15]), (500, 0.0, [1.0, 1.0]), (0, 0.0, [0.0, 0.0])])
def test_the_shorter_of_both_is_hidden(shared: int, contention: float, expected: list[float]) -> None:
    assert _hidden(_program(shared=shared, calls=(150, 50)), contention) == expected


def test_only_exchanges_are_hidden() -> None:
    assert _hidden(_program(shared=50, calls=(100,), collective="all_gather")) == [0.0]


def test_a_release_with_a_stream_for_it_is_faster_by_what_the_shared_expert_takes() -> None:
    """Nano on Automodel: what is hidden is no longer than the shared experts' kernels, and no more is sent."""
    with_stream, without = (simulate(small.scenario(
        "automodel", {"dp_shard": 8, "ep": 8}, model="nemotron-3-nano-30b-a3b", version=version, seq_len=1024,
        options={"dispatcher": "deepep"})) for version in ("0.4.0", "0.7.0"))
    assert with_stream.time is not None
    assert without.time is not None
    exchanged, alone = (next(c for c in time.communication if c.collective == "all_to_all")
                        for time in (with_stream.time, without.time))
    assert exchanged.alone_s == alone.alone_s == alone.exposed_s
    assert 0 < exchanged.hidden_s < alone.alone_s
    assert "framework_version" in {a.what for a in with_stream.assumptions if a.kind == "assumed"}
