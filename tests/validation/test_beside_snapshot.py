"""A snapshot beside a simulated step: which quantity stands beside which, and what is named."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import fakes
import recorded
import small
from simcore.errors import InputError, NotYet
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.validation.beside_snapshot import beside_dump
from simcore.validation.memory_snapshot import Dump, read_dump
from simcore.validation.side_by_side import Beside, SideBySide
from viz.exports.snapshot import MAX_POSTINGS, pickled

MIB = 2**20

@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=2), detail=True, postings=MAX_POSTINGS)


@pytest.fixture(scope="module")
def dump() -> Dump:
    return read_dump(pickle.dumps(recorded.step()), "mem.pickle")


def rows(found: SideBySide) -> dict[str, Beside]:
    return {row.what: row for row in (*found.quantities, *found.groups)}


def test_our_own_snapshot_differs_in_nothing(report: Report) -> None:
    comparison = beside_dump("ours", read_dump(pickled(report), "ours"), report, None)
    assert comparison.groups
    assert {row.difference for row in comparison.groups} == {0}
    assert [row.difference for row in comparison.quantities[:2]] == [0, 0]
    assert comparison.notes == ("rankscope wrote this snapshot: simulated stands beside simulated",)


def test_a_snapshot_beside_a_rank(report: Report, dump: Dump) -> None:
    comparison = beside_dump("mem.pickle", dump, report, 2)
    (rank,) = report.ranks
    assert rank.peak is not None
    apart = rank.peak.outside["workspace"]
    row = rows(comparison)["peak allocated"]
    assert (row.measured, row.simulated) == (35 * MIB - 100, rank.peak.allocated_bytes + apart)
    gap = rank.peak.allocated_bytes + apart - (35 * MIB - 100)
    assert row.difference == gap
    assert row.error == pytest.approx(gap / (35 * MIB - 100))
    assert "workspaces" in row.told
    assert rows(comparison)["workspaces of libraries"].simulated == apart
    assert rows(comparison)["optimizer states"].measured == 0
    assert sum(row.simulated or 0 for row in comparison.groups) == rank.peak.allocated_bytes + apart


def test_groups_are_named_the_largest_difference_first(report: Report, dump: Dump) -> None:
    gaps = [abs(row.difference or 0) for row in beside_dump("x", dump, report, None).groups]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > gaps[-1]


def test_megatrons_buffers_are_parameters_and_gradients_as_one(dump: Dump) -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}))
    seen = replace(dump, groups={"parameters and main gradients, in buffers": MIB, "parameters": 7})
    found = rows(beside_dump("x", seen, report, None))
    (rank,) = report.ranks
    assert rank.peak is not None
    held = rank.peak.by_category
    row = found["parameters and main gradients, in buffers"]
    assert (row.measured, row.simulated) == (MIB + 7, held["sharded_param"] + held["buffer"] + held["main_grad"])
    assert not {"parameters", "main gradients"} & set(found)


def test_what_a_snapshot_cannot_tell_is_said(report: Report, dump: Dump) -> None:
    bare = replace(dump, has_frames=False, refused=True, devices=(0, 3), device=3)
    comparison = beside_dump("x", bare, report, None)
    assert comparison.groups == ()
    for told in ("17 events", "device 3, the fullest", "an allocation failed", "no frames"):
        assert any(told in note for note in comparison.notes), told


def test_a_rank_that_nobody_has(report: Report, dump: Dump) -> None:
    with pytest.raises(InputError, match="has no rank 9: it has 4"):
        beside_dump("x", dump, report, 9)


def test_without_a_peak_there_is_nothing_to_stand_beside(dump: Dump) -> None:
    with pytest.raises(NotYet, match="no training step alone"):
        beside_dump("x", dump, fakes.report("x", ranks=(fakes.rank(None),)), None)


def test_it_is_json(report: Report, dump: Dump) -> None:
    comparison = beside_dump("mem.pickle", dump, report, None)
    assert SideBySide.model_validate_json(comparison.model_dump_json()) == comparison
