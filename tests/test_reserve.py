"""Reserved bytes: what is derived, and the calibration, worked out again from the rows that have both readings.

A replay of torch's allocator (`replay.py`) says how much of that the order of postings explains.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from statistics import median

import pytest

from replay import Allocator, fragmentation
from simcore.document import parse_document
from simcore.errors import RankscopeError
from simcore.flows import flow_of
from simcore.lower import lower
from simcore.measured import read_measured
from simcore.plan import place
from simcore.program import Program
from simcore.reserve import EXPANDABLE, GATHERED, ORDINARY, Shares, reserved
from simcore.scenario import Scenario, parse_scenario
from simcore.schedule import actions, lowered_microbatches
from simcore.setup import prepare
from simcore.tiles import Workload

MIB = 2**20
GROUPS = {"simumax-b200": 11, "mbridge-card": 6}


def shares() -> dict[str, list[float]]:
    """Reserved over allocated, less one, on one rank of each distinct reading.

    torchtune's one row with both was read before training: it says nothing about blocks that come free.
    """
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for one in read_measured()[0]:
        read = {(reading.of, reading.rank): reading.bytes for reading in one.row.readings}
        for (what, rank), size in read.items():
            if what == "reserved_peak" and ("allocated_peak", rank) in read and one.row.group in GROUPS:
                found[one.row.group].add((read["allocated_peak", rank], size))
    return {group: sorted(size / allocated - 1 for allocated, size in pairs) for group, pairs in found.items()}


def test_the_constants_are_those_of_the_rows() -> None:
    found = shares()
    assert {group: len(rows) for group, rows in found.items()} == GROUPS
    every = sorted(share for rows in found.values() for share in rows)
    assert pytest.approx(median(every), abs=5e-4) == ORDINARY.middle
    assert pytest.approx(every[round(0.9 * (len(every) - 1))], abs=5e-4) == ORDINARY.high


@pytest.mark.parametrize(("kept", "left_out", "half", "worst"), [
    ("simumax-b200", "mbridge-card", 0.012, 0.067), ("mbridge-card", "simumax-b200", 0.011, 0.045)])
def test_the_middle_of_one_group_is_near_the_other(kept: str, left_out: str, half: float, worst: float) -> None:
    """The errors that the module's docstring tells."""
    found = shares()
    middle = median(found[kept])
    errors = [abs((1 + middle) / (1 + share) - 1) for share in found[left_out]]
    assert median(errors) <= half
    assert max(errors) <= worst


def test_most_readings_lie_in_the_interval() -> None:
    every = [share for rows in shares().values() for share in rows]
    assert sum(0 <= share <= ORDINARY.high + 5e-4 for share in every) >= 0.9 * len(every)


@pytest.mark.parametrize("shares", [ORDINARY, EXPANDABLE, GATHERED])
@pytest.mark.parametrize("allocated", [1, 2 * MIB, 5 * MIB + 1, 80 * 2**30])
def test_whole_segments_from_what_is_allocated_up(allocated: int, shares: Shares) -> None:
    found = reserved(allocated, shares)
    assert allocated <= found.low < allocated + 2 * MIB
    assert found.low <= found.middle <= found.high
    assert {size % (2 * MIB) for size in (found.low, found.middle, found.high)} == {0}
    assert found.middle - allocated * (1 + shares.middle) < 2 * MIB


# ---- the replay -----------------------------------------------------------------------------------------------------
@cache
def replays() -> list[tuple[float, float, float]]:
    """(measured, ordinary, expandable) of each reading of simumax-b200 that can be simulated without routing."""
    found = []
    for one in {one.row.readings: one for one in read_measured()[0] if one.row.group == "simumax-b200"}.values():
        assert one.entry is not None
        read = {(reading.of, reading.rank): reading.bytes for reading in one.row.readings}
        for (what, rank), size in read.items():
            program = _program(one.entry.scenario, rank) if what == "reserved_peak" else None
            if program:
                found.append((size / read["allocated_peak", rank] - 1, fragmentation(program, expandable=False),
                              fragmentation(program, expandable=True)))
    return found


def _program(scenario: Scenario | None, rank: int | str) -> Program | None:
    assert scenario is not None
    try:
        job, table = prepare(scenario)
    except RankscopeError:
        return None
    if job.has_experts:
        return None
    plan = place(job.graph, job.mesh, table, int(rank))
    workload = Workload(scenario.training.micro_batch_size, scenario.training.seq_len // job.mesh.cp, 0)
    count = lowered_microbatches(table.schedule, scenario.num_microbatches)
    return lower(plan, workload, actions(table.schedule, plan.stage, count), flow_of(table))


def test_the_measured_runs_had_ordinary_segments() -> None:
    """Expandable ones would keep less than a per cent; ordinary ones explain a part of what was kept, and no more."""
    assert len(replays()) >= 5
    for measured, ordinary, expandable in replays():
        assert 0 <= expandable < 0.01 < measured
        assert expandable < ordinary < measured


def test_expandable_segments_keep_what_the_replay_keeps_and_misses() -> None:
    """Of the dense rows alone both are smaller: the stored shares take in the rows with experts too."""
    missed = [measured - ordinary for measured, ordinary, _ in replays()]
    kept = [expandable for *_, expandable in replays()]
    assert median(missed) + median(kept) == pytest.approx(EXPANDABLE.middle, abs=5e-3)
    assert max(missed) + max(kept) <= EXPANDABLE.high


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gathered_parameters_keep_more_than_any_reading_of_whole_ones(recompute: str) -> None:
    data = {"name": "x", "model": "llama-3.1-8b", "framework": "fsdp2", "topology": "dgx-h200", "mesh": {"dp_shard": 8},
            "training": {"seq_len": 8192, "recompute": recompute}}
    program = _program(parse_scenario(parse_document(json.dumps(data), "x.json")), 0)
    assert program is not None
    assert ORDINARY.high < fragmentation(program, expandable=False) < GATHERED.high + 0.01


def test_a_block_is_split_and_joined_again() -> None:
    """Two blocks out of one segment of 20 MiB: when both are free, a third of their size fits in their place."""
    allocator = Allocator(expandable=False)
    first, second = allocator.take(4 * MIB), allocator.take(4 * MIB)
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 8 * MIB)
    allocator.give(first)
    allocator.give(second)
    allocator.take(9 * MIB)
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 9 * MIB)


def test_a_hole_that_is_too_small_costs_a_segment_unless_segments_grow() -> None:
    reserved = []
    for expandable in (False, True):
        allocator = Allocator(expandable=expandable)
        first, _ = allocator.take(40 * MIB), allocator.take(512)
        allocator.give(first)
        allocator.take(60 * MIB)
        reserved.append(allocator.reserved)
    assert reserved == [(40 + 60 + 2) * MIB, (60 + 2) * MIB]
