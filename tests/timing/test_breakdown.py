"""Breakdown of a step: parts add up to it in every run; waiting and its reasons, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import small
from layouts import Layout, layouts
from simcore.inputs.scenario import Scenario
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.tile import AMOUNT, AUX, OP, SLOT
from simcore.recording.tape import Kernel, Op, Stream
from simcore.results.report import StepTime
from simcore.simulate import simulate
from simcore.timing.breakdown import PARTS, Breakdown, Kernels, Sent, breakdown
from simcore.timing.kernel import DTYPES, KERNELS
from simcore.timing.streams import tracks
from simcore.timing.timeline import run

GATHER, REDUCE = 0, 2
"""Handles."""


@dataclass(frozen=True)
class Alone:
    """One class, every communicator on a link of its own."""

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        return (number,)

    def name(self, number: int, comm: int) -> str:
        return str(comm)

    def link(self, number: int, comm: int) -> str:
        return f"link {comm}"

    def lane(self, number: int) -> int:
        return 0


def builder() -> Builder:
    out = Builder(Tables())
    out.at(Phase.FORWARD, 0)
    return out


def of(out: Builder, weight: Sequence[int] = (1,), *, host_ns: int = 0, contention: float = 0.0, shown: float = 1.0,
       once: int = 0) -> Breakdown:
    """Kernels take as many ns as they move bytes, calls as many as their payload; `shown` of it is not overlapped."""
    program = small.written(out, "a", "b", "c")
    columns = program.columns
    ns, host = (np.where(columns[:, OP] == Op.COMPUTE, one, 0) for one in (columns[:, AUX], host_ns))
    track = tracks(program, ns, host, lambda comm, payload: int(payload * shown), contention, stops=True)
    (times,) = run([track], Alone())
    at = np.flatnonzero(program.distinct[:, OP] == Op.COMPUTE)
    rows = program.distinct[at]
    kernels = Kernels(at, rows[:, SLOT], np.full(len(at), DTYPES.index("bf16")), rows[:, AUX], rows[:, AMOUNT],
                      rows[:, AUX], np.zeros(len(at)), rows[:, AUX].astype(float))
    return breakdown(program, track, times, np.array(weight), kernels, lambda comm, payload: payload, once)


def parts(found: Breakdown) -> dict[str, int]:
    return {name: ns for name, ns in found.parts.items() if ns}


def test_kernels_by_pass() -> None:
    """The loss is forward, recomputation backward; the second microbatch happens three times."""
    out = builder()
    for microbatch in range(2):
        for phase, ns in ((Phase.FORWARD, 10), (Phase.LOSS, 1), (Phase.RECOMPUTE, 5), (Phase.BACKWARD, 20)):
            out.at(phase, microbatch)
            out.compute(Kernel.GEMM, 7, ns)
    out.at(Phase.OPTIMIZER, 1)
    out.compute(Kernel.OPTIMIZER, 0, 3)
    split_up = of(out, (1, 3), once=2)
    assert parts(split_up) == {"forward": 44, "backward": 100, "optimizer": 9, "host": 2}
    gemm, step = split_up.work
    assert (gemm.kernel, gemm.dtype, gemm.ns, gemm.flops, gemm.bytes_moved, gemm.memory_ns) == (
        "gemm", "bf16", (44, 100, 0), 16 * 7, 144, 144.0)
    assert (step.kernel, step.ns) == ("optimizer", (0, 0, 9))


def test_a_gather_is_hidden_as_far_as_nobody_waits() -> None:
    out = builder()
    small.gather_beside(out, "dp_shard", 40, 15, 5)
    split_up = of(out)
    assert parts(split_up) == {"forward": 20, "communication": 25}
    assert split_up.sent == (Sent("all_gather", "dp_shard", 1, 40, 25, 15),)


def test_kernels_that_a_collective_slows() -> None:
    """By a share of their own 16 ns: the collective is longer, and what is left of it is waited for."""
    out = builder()
    out.collective(0, out.tables.comm("all_gather", "dp_shard", "bf16"), 40, Stream.ALL_GATHER, GATHER)
    out.compute(Kernel.GEMM, 0, 16)
    out.wait(0, GATHER)
    assert parts(of(out, contention=0.5)) == {"forward": 16, "contention": 8, "communication": 16}


def test_a_call_inside_a_layer_is_hidden_by_its_kernels_alone() -> None:
    """A share of 0.4 of 10 ns stays exposed."""
    out = builder()
    out.compute(Kernel.GEMM, 0, 7)
    out.collective(0, out.tables.comm("all_to_all", "ep", "bf16"), 10, Stream.COMPUTE, 0)
    split_up = of(out, shown=0.4)
    assert parts(split_up) == {"forward": 7, "communication": 4}
    assert split_up.sent == (Sent("all_to_all", "ep", 1, 10, 4, 6),)


def test_what_runs_when_kernels_have_ended_is_exposed() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 7)
    out.collective(0, out.tables.comm("reduce_scatter", "dp_shard", "fp32"), 10, Stream.REDUCE, REDUCE)
    split_up = of(out)
    assert parts(split_up) == {"forward": 7, "communication": 10}
    assert split_up.sent == (Sent("reduce_scatter", "dp_shard", 1, 10, 10, 0),)


def test_a_host_that_is_slower_than_the_device() -> None:
    out = builder()
    for _ in range(4):
        out.compute(Kernel.GEMM, 0, 2)
    assert parts(of(out, host_ns=10)) == {"forward": 8, "host": 34}


def time_of(asked: Scenario) -> StepTime:
    report = simulate(asked)
    assert report.time is not None, report.problems
    return report.time


@settings(max_examples=40, deadline=None, derandomize=True)
@example(("automodel", {"pp": 2, "dp_shard": 4, "ep": 2}, {}), 5, "full")
@example(("megatron", {"pp": 5, "tp": 2, "ep": 2, "etp": 1}, {}), 9, "none")
@given(layouts(most=16), st.sampled_from([1, 2, 3, 7, 24]), st.sampled_from(["none", "full"]))
def test_parts_add_up_to_the_step(layout: Layout, microbatches: int, recompute: str) -> None:
    """To the nanosecond, also where microbatches are extrapolated; and the parts' own parts to them."""
    name, mesh, options = layout
    count = microbatches if mesh.get("pp", 1) == 1 else mesh["pp"] + microbatches
    time = time_of(small.scenario(name, mesh, options=options, microbatches=count, recompute=recompute))
    assert tuple(time.parts) == tuple(PARTS)
    assert all(part >= 0 for part in time.parts.values())
    assert round(sum(time.parts.values()) * 1e9) == round(time.step_s * 1e9)
    assert sum(one.exposed_s for one in time.communication) == pytest.approx(time.parts["communication"])
    for part in ("forward", "backward", "optimizer"):
        assert sum(getattr(one, f"{part}_s") for one in time.kernels) == pytest.approx(time.parts[part])
    assert time.roofline is not None
    assert sum(time.roofline.seconds.values()) == pytest.approx(time.step_s)
    assert all(part > -1e-9 for part in time.roofline.seconds.values())
    assert time.roofline.limit_s <= time.step_s


@pytest.mark.parametrize("name", ["automodel", "megatron"])
def test_more_microbatches_fill_the_bubble(name: str) -> None:
    """The bubble of p stages and m microbatches is at least (p - 1) / (m + p - 1): the last stage has the head too."""
    shares = []
    for microbatches in (4, 8, 16):
        share = time_of(small.scenario(name, {"pp": 4}, model="llama-3-8b", seq_len=4096,
                                       microbatches=microbatches)).bubble_share
        assert share is not None
        assert share > 3 / (microbatches + 3)
        shares.append(share)
    assert shares[0] > 1.15 * shares[1] > 1.25 * shares[2]


def test_without_stages_there_is_no_bubble() -> None:
    assert time_of(small.scenario("megatron", {"tp": 2, "dp_shard": 2}, microbatches=4)).bubble_share == 0


def test_classes_are_told_by_their_published_names() -> None:
    found = {kernel.kernel for kernel in time_of(small.scenario("fsdp2", {"dp_shard": 2})).kernels}
    assert found <= set(KERNELS)
    assert {"gemm", "attention", "mamba_scan", "optimizer"} <= found
