"""Programs as streams: what is fused, what waits for what, and who may start when."""

from __future__ import annotations

import numpy as np

import small
from simcore.builder import Builder
from simcore.outline import BACKWARD_GATHER, Phase, Tables
from simcore.streams import Track, tracks
from simcore.tape import Kernel, Op, Stream
from simcore.tile import AUX, OP

GATHER, REDUCE = 0, 2
"""Handles."""


def builder() -> Builder:
    out = Builder(Tables())
    out.at(Phase.FORWARD, 0)
    return out


def track(out: Builder, host_ns: int = 0, contention: float = 0.0) -> Track:
    """A kernel takes as many ns as it moves bytes, a call as many as its payload; the host takes as long with each."""
    program = small.written(out, "a", "b", "c")
    columns = program.columns
    kernels = np.where(columns[:, OP] == Op.COMPUTE, columns[:, AUX], 0)
    hosted = np.where(columns[:, OP] == Op.COMPUTE, host_ns, 0)
    return tracks(program, kernels, hosted, lambda comm, payload: payload, contention, stops=True)


def test_kernels_with_nothing_between_them_are_one_item() -> None:
    out = builder()
    for _ in range(5):
        out.compute(Kernel.GEMM, 0, 10)
    assert list(track(out).item_ns) == [50]


def test_a_wait_splits_the_compute_stream() -> None:
    out = builder()
    small.gather_beside(out, "dp_shard_cp", 7, 10, 20)
    made = track(out)
    assert made.item_ns == (10, 20)
    assert [item.wait_for for item in made.skeleton.items] == [0, -1]
    ((call,),) = made.skeleton.calls.values()
    assert (made.call_ns, call.gate, call.serial) == ((7,), -1, 0)


def test_a_reduction_starts_when_the_kernels_before_it_are_done() -> None:
    out = builder()
    comm = out.tables.comm("reduce_scatter", "dp_shard_cp", "fp32")
    out.compute(Kernel.GEMM, 0, 10)
    out.collective(0, comm, 3, Stream.REDUCE, REDUCE)
    out.compute(Kernel.GEMM, 0, 30)
    made = track(out)
    ((call,),) = made.skeleton.calls.values()
    assert list(made.item_ns) == [10, 30]
    assert call.gate == 0


def test_a_layers_own_collective_is_in_line() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 10)
    out.collective(1, out.tables.comm("all_to_all", "ep", "bf16"), 8, Stream.COMPUTE, 0)
    out.compute(Kernel.GEMM, 0, 1)
    made = track(out)
    assert made.skeleton.calls == {}
    assert (made.item_ns, made.call_ns) == ((10, 1), (8,))
    assert [item.call is not None for item in made.skeleton.items] == [True, False]


def test_a_forward_gather_waits_for_the_copy_out_before_the_last() -> None:
    """Two buffers are alive in forward: the third gather starts when the first was copied out."""
    out = builder()
    gather = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    for layer in range(3):
        out.collective(layer, gather, 5, Stream.ALL_GATHER, GATHER)
        out.wait(layer, GATHER)
        out.compute(Kernel.COPY, 0, 2)
        out.compute(Kernel.GEMM, 0, 10)
    made = track(out)
    (calls,) = made.skeleton.calls.values()
    first_copy_out = made.item_ns.index(2)
    assert [call.gate for call in calls] == [-1, -1, first_copy_out]


def test_the_clock_counts_kernels_alone() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 10)
    out.collective(1, out.tables.comm("all_to_all", "ep", "bf16"), 8, Stream.COMPUTE, 0)
    out.compute(Kernel.GEMM, 0, 1)
    made = track(out)
    assert made.clock.tolist() == [10, 10, 11]
    assert sum(made.item_ns) == 11


def test_the_host_issues_kernels_one_after_another() -> None:
    """Issued at 20, 40 and 60; the last takes 30, so all are done at 90 after the host began."""
    out = builder()
    for ns in (5, 10, 30):
        out.compute(Kernel.GEMM, 0, ns)
    made = track(out, host_ns=20)
    assert (made.item_ns, made.host_ns, made.host_tail) == ((45,), (60,), (90,))


def test_a_long_first_kernel_hides_the_host() -> None:
    """Issued at 20, it runs until 1,020, and the two behind it are there by then."""
    out = builder()
    for ns in (1000, 10, 10):
        out.compute(Kernel.GEMM, 0, ns)
    assert track(out, host_ns=20).host_tail == (1040,)


def test_each_item_counts_from_where_the_host_stood() -> None:
    out = builder()
    small.gather_beside(out, "dp_shard_cp", 7, 10, 20)
    made = track(out, host_ns=3)
    assert (made.host_ns, made.host_tail) == ((3, 3), (13, 23))


def test_no_item_goes_on_behind_a_pass() -> None:
    """What the device waits for in a microbatch must repeat with it."""
    out = builder()
    for microbatch in range(2):
        for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.RECOMPUTE):
            out.at(phase, microbatch)
            out.compute(Kernel.GEMM, 0, 10)
    out.at(Phase.OPTIMIZER, 1)
    out.compute(Kernel.GEMM, 0, 1)
    assert track(out).item_ns == (20, 20, 20, 20, 1)


def test_kernels_beside_a_collective_take_longer() -> None:
    """A gather of 40 ns slows the kernels behind it by half of that."""
    out = builder()
    comm = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    out.collective(0, comm, 40, Stream.ALL_GATHER, GATHER)
    out.compute(Kernel.GEMM, 0, 100)
    out.wait(0, GATHER)
    assert track(out, contention=0.5).item_ns[0] == 120


def test_a_gather_slows_what_runs_before_its_unit_is_reached() -> None:
    """It may start behind a copy-out: the 30 ns of the unit before are beside it, though issued earlier."""
    out = builder()
    comm = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    for _ in range(3):
        out.collective(0, comm, 40, Stream.ALL_GATHER, BACKWARD_GATHER)
        out.wait(0, BACKWARD_GATHER)
        out.compute(Kernel.COPY, 0, 10)
        out.compute(Kernel.GEMM, 0, 30)
    assert sum(track(out, contention=0.5).item_ns) == 120 + 15 + 15


def test_what_waits_for_a_collective_does_not_run_beside_it() -> None:
    """Of the shorter of the two: a gather that the next kernel needs slows nothing, one beside 10 ns half of those."""
    out = builder()
    comm = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    for beside in (0, 10):
        out.collective(0, comm, 40, Stream.ALL_GATHER, GATHER)
        if beside:
            out.compute(Kernel.GEMM, 0, beside)
        out.wait(0, GATHER)
        out.compute(Kernel.GEMM, 0, 100)
    assert sum(track(out, contention=0.5).item_ns) == 210 + 5
