"""A trace beside a simulated step: which parts stand beside which."""

from __future__ import annotations

import pytest

import fakes
import small
from simcore.errors import NotYet
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.validation.beside_trace import beside_trace
from simcore.validation.kernel_trace import COMMUNICATION, OTHER, Trace, read_trace
from simcore.validation.side_by_side import Beside, SideBySide
from viz.exports.kineto import kineto_traces

TRACE = Trace(rank=3, step_s=0.2, busy_s=0.15, collectives_s=0.02, exposed_s=0.01, num_steps=2, num_kernels=9,
              kinds={"matrix products": 0.1, COMMUNICATION: 0.02, OTHER: 0.04}, device="NVIDIA H100", ours=False)


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4}), detail=True)


def rows(found: SideBySide) -> dict[str, Beside]:
    return {row.what: row for row in found.quantities}


def test_our_own_trace_differs_in_nothing(report: Report) -> None:
    texts, _ = kineto_traces(report)
    found = beside_trace("ours", read_trace(next(iter(texts.values())).encode(), "ours"), report)
    read = rows(found)
    assert read["step"].error == pytest.approx(0, abs=1e-3)
    assert read["collectives"].error == pytest.approx(0, abs=1e-3)
    assert len(read) == 4
    assert "rankscope wrote this trace" in found.notes[0]


def test_classes_of_kernels_add_up_to_kinds(report: Report) -> None:
    read = rows(beside_trace("t.json", TRACE, report))
    assert report.time is not None
    every = sum(row.forward_s + row.backward_s + row.optimizer_s for row in report.time.kernels)
    kinds = {name: row.simulated or 0 for name, row in read.items() if name.startswith("kernels: ")}
    assert sum(kinds.values()) == pytest.approx(every)
    products = [row for row in report.time.kernels if row.kernel in ("gemm", "grouped_gemm")]
    assert kinds["kernels: matrix products"] == pytest.approx(sum(r.forward_s + r.backward_s for r in products))
    assert f"kernels: {COMMUNICATION}" not in read
    assert read[f"kernels: {OTHER}"].measured == 0.04
    assert read["step"].told == "median of 2 profiled steps"


def test_a_workload_without_one_training_step_has_no_trace_beside_it() -> None:
    with pytest.raises(NotYet, match="a trace beside a workload"):
        beside_trace("t.json", TRACE, fakes.report(time=None))
