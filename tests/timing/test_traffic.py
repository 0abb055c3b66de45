"""Collectives counted and weighed: calls, payload, and what leaves a rank on the wire."""

from __future__ import annotations

import numpy as np
import pytest

import small
from simcore.hardware.topology import load_topology
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.recording.tape import Stream
from simcore.results.report import TrafficRow
from simcore.simulate import simulate
from simcore.timing.routes import Routes
from simcore.timing.traffic import traffic

RANKS = np.array([0])
ROUTES = Routes(*small.prepared("fsdp2", {"dp_shard": 4, "ep": 2}), load_topology("dgx-h100"))


def program(num_microbatches: int = 1, reduced: str = "dp_shard_cp") -> Program:
    out = Builder(Tables())
    gather = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    dispatch = out.tables.comm("all_to_all", "ep", "bf16")
    reduce = out.tables.comm("all_reduce", reduced, "fp32")
    for microbatch in range(num_microbatches):
        out.at(Phase.FORWARD, microbatch)
        out.collective(0, gather, 400, Stream.ALL_GATHER, 0)
        out.at(Phase.LOSS)
        out.collective(1, gather, 800, Stream.ALL_GATHER, 0)
        out.collective(1, dispatch, 100, Stream.COMPUTE, 0)
        out.at(Phase.BACKWARD)
        out.collective(0, reduce, 1000, Stream.REDUCE, 2)
    return small.written(out, "a", "b")


def by_name(rows: tuple[TrafficRow, ...]) -> dict[str, TrafficRow]:
    return {row.collective: row for row in rows}


def test_calls_of_a_kind_are_one_row_and_the_loss_is_forward() -> None:
    rows = by_name(traffic(program(), ROUTES, RANKS, range(1), 1))
    gather = rows["all_gather"]
    assert (gather.calls, gather.payload_bytes, gather.phase, gather.group_size) == (2, 1200, "forward", 4)
    assert set(rows) == {"all_gather", "all_to_all", "all_reduce"}


def test_wire_bytes_of_rings_and_pairs() -> None:
    """(n - 1) / n of what is gathered or exchanged, twice that of what is reduced to all."""
    rows = by_name(traffic(program(), ROUTES, RANKS, range(1), 1))
    assert rows["all_gather"].wire_bytes == 1200 * 3 // 4
    assert rows["all_to_all"].wire_bytes == 100 // 2
    assert rows["all_reduce"].wire_bytes == 2 * 1000 * 3 // 4
    assert (rows["all_to_all"].algorithm, rows["all_reduce"].algorithm) == ("pairwise", "ring")


def test_a_group_of_one_moves_nothing() -> None:
    assert set(by_name(traffic(program(reduced="tp"), ROUTES, RANKS, range(1), 1))) == {"all_gather", "all_to_all"}


def test_the_steady_microbatch_stands_for_those_that_repeat_it() -> None:
    """4 written out of 10: numbers 0, 2 and 3 once, number 1 seven times."""
    assert traffic(program(4), ROUTES, RANKS, range(1, 2), 7) == traffic(program(10), ROUTES, RANKS, range(1, 2), 1)


def test_phases_and_dtypes_are_rows_of_their_own() -> None:
    out = Builder(Tables())
    for dtype in ("bf16", "fp32"):
        comm = out.tables.comm("all_gather", "dp_shard_cp", dtype)
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            out.at(phase, 0)
            out.collective(0, comm, 8, Stream.ALL_GATHER, 0)
    rows = traffic(small.written(out, "a"), ROUTES, RANKS, range(1), 1)
    assert [(r.phase, r.dtype, r.calls) for r in rows] == [
        ("backward", "bf16", 1), ("backward", "fp32", 1), ("forward", "bf16", 1), ("forward", "fp32", 1)]


def sized(*sizes: int) -> Program:
    """All-gathers of two sizes, over four ranks of a host."""
    out = Builder(Tables())
    comm = out.tables.comm("all_gather", "dp_shard_cp", "bf16")
    for size in sizes:
        out.at(Phase.FORWARD, 0)
        out.collective(0, comm, size, Stream.ALL_GATHER, 0)
    return small.written(out, "a")


@pytest.mark.parametrize(("sizes", "timing"), [
    ((512, 2**29), "measured"), ((512, 2**20, 2**29 + 1), "model"), ((511, 2**20), "model"), ((0, 2**20), "model")])
def test_a_row_was_measured_where_all_its_calls_were(sizes: tuple[int, ...], timing: str) -> None:
    """The table of H100 goes from 512 B to 512 MiB."""
    (row,) = traffic(sized(*sizes), ROUTES, RANKS, range(1), 1)
    assert (row.timing, row.calls) == (timing, len(sizes))


def test_what_stays_in_a_node_and_what_leaves_it_is_the_wire() -> None:
    """16 ranks in two nodes: a ring of 16 links has 2 between nodes; a host's 8 ranks have none."""
    far = Routes(*small.prepared("fsdp2", {"dp_shard": 16, "ep": 2}), load_topology("dgx-h100"))
    row = by_name(traffic(program(), far, RANKS, range(1), 1))["all_gather"]
    assert (row.wire_bytes, row.network_bytes) == (1200 * 15 // 16, round(400 / 16 * 15 / 8) + round(800 / 16 * 15 / 8))
    near = by_name(traffic(program(), ROUTES, RANKS, range(1), 1))["all_gather"]
    for found in (row, near):
        assert found.nvlink_bytes + found.network_bytes == found.wire_bytes
    assert (near.network_bytes, row.timing, near.timing) == (0, "model", "model")


@pytest.mark.parametrize("name", ["automodel", "megatron"])
@pytest.mark.parametrize("microbatches", [5, 9])
def test_what_a_stage_sends_the_next_one_receives(name: str, microbatches: int) -> None:
    """Hidden states go up once a microbatch and their gradients come down: 64 tokens x 256 x bf16."""
    report = simulate(small.scenario(name, {"pp": 5, "dp_shard": 2}, microbatches=microbatches), timed=False)
    message = 64 * 256 * 2
    for rank in report.ranks:
        neighbours = (rank.stage > 0) + (rank.stage < 4)
        sent = sum(t.wire_bytes for t in rank.traffic if t.collective == "send_recv")
        assert sent == microbatches * neighbours * message, rank.stage
