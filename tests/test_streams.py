"""Programs as streams: what is fused, what waits for what, and who may start when."""

from __future__ import annotations

import numpy as np

import small
from simcore.outline import Builder, Phase, Tables
from simcore.streams import Track, tracks
from simcore.tape import Kernel, Op, Stream
from simcore.tile import AUX, OP

GATHER, REDUCE = 0, 2
"""Handles."""


def builder() -> Builder:
    out = Builder(Tables())
    out.at(Phase.FORWARD, 0)
    return out


def track(out: Builder) -> Track:
    """A kernel takes as many ns as it moves bytes, a call as many as its payload."""
    program = small.written(out, "a", "b", "c")
    columns = program.columns
    kernels = np.where(columns[:, OP] == Op.COMPUTE, columns[:, AUX], 0)
    return tracks(program, kernels, lambda comm, payload: payload)


def test_kernels_with_nothing_between_them_are_one_item() -> None:
    out = builder()
    for _ in range(5):
        out.compute(Kernel.GEMM, 0, 10)
    assert list(track(out).item_ns) == [50]


def test_a_wait_splits_the_compute_stream() -> None:
    out = builder()
    comm = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    out.collective(0, comm, 7, Stream.ALL_GATHER, GATHER)
    out.compute(Kernel.GEMM, 0, 10)
    out.wait(0, GATHER)
    out.compute(Kernel.GEMM, 0, 20)
    made = track(out)
    assert made.item_ns == (10, 20)
    assert [item.wait_for for item in made.skeleton.items] == [0, -1]
    ((call,),) = made.skeleton.calls.values()
    assert (made.call_ns, call.gate, call.serial) == ((7,), -1, 0)


def test_a_wait_for_what_nobody_issued_is_none() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 10)
    out.wait(0, GATHER)
    out.compute(Kernel.GEMM, 0, 5)
    assert list(track(out).item_ns) == [15]


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


def test_calls_of_a_kind_are_numbered_so_that_ranks_find_each_other() -> None:
    out = builder()
    gather = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    other = out.tables.comm("all_gather", "expert_dp", "bf16")
    for comm in (gather, other, gather):
        out.collective(0, comm, 1, Stream.ALL_GATHER, 9)
    (calls,) = track(out).skeleton.calls.values()
    assert [(c.comm, c.serial) for c in calls] == [(gather, 0), (other, 0), (gather, 1)]


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
