"""Time that a collective in line with kernels takes more than alone: which calls, how much, and where it is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.hardware.efficiency import Efficiency, load_efficiency
from simcore.placement.libraries import FULL_ITERATION
from simcore.program.tile import OP, SLOT, STREAM
from simcore.recording.tape import Op, Stream
from simcore.simulate import simulate
from simcore.timing.program_kernels import in_line_ns

GIVEN = load_efficiency("h100")
EXPERTS: dict[str, Any] = {"mesh": {"dp_shard": 4, "tp": 2, "ep": 2}}


def test_torch_s_collectives_between_kernels_wait_and_no_others() -> None:
    """Those of the compute stream; all-to-alls, those in CUDA graphs and those of user buffers are as fast as alone."""
    program = small.program_of("megatron", EXPERTS["mesh"])
    _, table = prepare(small.scenario("megatron", EXPERTS["mesh"]))
    rows, comms = program.distinct, list(program.tables.comms)
    found = in_line_ns(program, GIVEN, table.libraries)
    assert found is not None
    seen = set()
    for row, ns in zip(rows.tolist(), found.tolist(), strict=True):
        is_call = row[OP] == Op.COLLECTIVE
        name = comms[row[SLOT]][0] if is_call else ""
        waits = is_call and row[STREAM] == Stream.COMPUTE and name != "all_to_all"
        assert ns == (int(GIVEN.in_line.si * 1e9) if waits else 0), row
        seen.add((name, waits))
    assert {("all_gather", True), ("reduce_scatter", True), ("reduce_scatter", False), ("all_to_all", False)} <= seen
    assert in_line_ns(program, GIVEN, replace(table.libraries, graphs=(FULL_ITERATION,))) is None
    apart = in_line_ns(program, GIVEN, replace(table.libraries, overlapped=("tp",)))
    assert apart is None or apart.sum() < found.sum()


def test_it_is_part_of_the_step_and_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that its host does not hold up takes so much longer for each call that nothing runs beside."""
    asked = small.scenario("megatron", {"tp": 2}, model="llama-3-8b", seq_len=8192)
    slow, quick = (_timed(asked, monkeypatch, ns) for ns in (20_000, 0))
    for row, before in zip(slow.communication, quick.communication, strict=True):
        more = row.calls * 20e-6
        assert row.axis == "tp"
        assert row.alone_s - before.alone_s == pytest.approx(more)
        assert row.exposed_s - before.exposed_s == pytest.approx(more)
    calls = sum(row.calls for row in slow.communication)
    assert calls > 100
    assert slow.step_s - quick.step_s == pytest.approx(calls * 20e-6, abs=2 * 20e-6)  # one waits for the host


def _timed(asked: Any, monkeypatch: pytest.MonkeyPatch, ns: int) -> Any:
    def fixed(program: Any, efficiency: Efficiency, libraries: Any) -> Any:
        found = in_line_ns(program, efficiency, libraries)
        return None if found is None else np.where(found > 0, ns, 0)

    monkeypatch.setattr("simcore.timing.step.in_line_ns", fixed)
    time = simulate(asked).time
    assert time is not None
    return time


def test_a_file_that_does_not_say_it_has_none() -> None:
    page = GIVEN.model_dump(by_alias=True)
    del page["in_line"]
    assert Efficiency.model_validate(page).in_line.si == 0.0
    assert GIVEN.in_line.si == pytest.approx(20e-6)
