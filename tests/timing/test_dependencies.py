"""Outlines as what a device executes: what is one item, and what waits for what."""

from __future__ import annotations

import small
from simcore.program.builder import Builder
from simcore.program.outline import BUCKET_GATHER, Phase, Tables
from simcore.program.stage_borders import BORDER_HANDLES
from simcore.recording.rows import HOST_DRAINS, HOST_STOPS
from simcore.recording.tape import Kernel, Stream
from simcore.timing.dependencies import ExecutionGraph, execution_graph

GATHER = 0
"""A handle."""


def builder() -> Builder:
    out = Builder(Tables())
    out.at(Phase.FORWARD, 0)
    return out


def skeleton(out: Builder) -> ExecutionGraph:
    return execution_graph(small.written(out, "a", "b", "c").outline)


def test_a_wait_for_what_nobody_issued_is_none() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 10)
    out.wait(0, GATHER)
    out.compute(Kernel.GEMM, 0, 5)
    (item,) = skeleton(out).items
    assert (item.row, item.wait_for) == (3, -1)


def test_calls_of_a_kind_are_numbered_so_that_ranks_find_each_other() -> None:
    out = builder()
    gather = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    other = out.tables.comm("all_gather", "expert_dp", "bf16")
    for comm in (gather, other, gather):
        out.collective(0, comm, 1, Stream.ALL_GATHER, 9)
    (calls,) = skeleton(out).calls.values()
    assert [(c.comm, c.serial) for c in calls] == [(gather, 0), (other, 0), (gather, 1)]


def test_the_host_stops_where_a_recording_says_so() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 10)
    out.wait(0, HOST_STOPS)
    for _ in range(2):
        out.compute(Kernel.PERMUTE, 0, 5)
    assert [(item.row, item.stops_host) for item in skeleton(out).items] == [(1, True), (4, False)]


def test_a_gather_of_buckets_starts_when_the_kernels_before_it_are_done() -> None:
    """`all_gather_stream.wait_stream(current_stream)`; other gathers start at once."""
    out = builder()
    gather = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    out.compute(Kernel.GEMM, 0, 10)
    out.collective(0, gather, 1, Stream.ALL_GATHER, 9)
    out.collective(1, gather, 1, Stream.ALL_GATHER, BUCKET_GATHER)
    out.compute(Kernel.GEMM, 0, 5)
    graph = skeleton(out)
    (calls,) = graph.calls.values()
    assert [call.gate for call in calls] == [-1, 0]
    assert [item.row for item in graph.items] == [2, 4]


def test_messages_are_items_of_their_own() -> None:
    """One where a message from another stage has arrived, one where a message is sent."""
    out = builder()
    border = out.tables.comm("send_recv", "pp", "bf16")
    out.collective(0, border, 5, Stream.RECEIVE, BORDER_HANDLES[0])
    out.wait(0, BORDER_HANDLES[0])
    out.compute(Kernel.GEMM, 0, 10)
    out.collective(0, border, 5, Stream.SEND, BORDER_HANDLES[1])
    out.compute(Kernel.GEMM, 0, 10)
    assert [(item.row, item.message) for item in skeleton(out).items] == [(1, 0), (3, -1), (3, 1), (5, -1)]


def test_a_gather_behind_the_end_of_a_microbatch_waits_for_it() -> None:
    """The host waits for the device there; where it stops for a number of the device alone, gathers do not wait."""
    out = builder()
    gather = out.tables.comm("all_gather", "dp_shard", "bf16")
    for handle, stop in ((17, HOST_STOPS), (18, HOST_DRAINS), (19, HOST_STOPS)):
        out.collective(0, gather, 8, Stream.ALL_GATHER, handle)
        out.compute(Kernel.GEMM, 0, 10)
        out.wait(0, stop)
    graph = skeleton(out)
    assert [call.gate for call in graph.calls[int(Stream.ALL_GATHER)]] == [-1, -1, 1]
    assert [item.stops_host for item in graph.items[:3]] == [True] * 3
