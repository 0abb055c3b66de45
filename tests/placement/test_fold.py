"""Classes of ranks: they partition the world, members are equal, and ranges are written shortly."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import small
from layouts import Layout, layouts, resharded
from simcore.placement.fold import RankClass, _numbered, coordinate_text, fold, format_ranks, unfolded, unfolded_one
from simcore.placement.mesh import Axis, IntArray, Mesh
from simcore.placement.plan import place
from simcore.timing.routes import HOST_WAYS


def ranks_of(text: str) -> list[int]:
    ends, _, stride = text.partition(":")
    first, _, last = ends.partition("-")
    return list(range(int(first), int(last or first) + 1, int(stride or 1)))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(layouts())
def test_classes_partition_the_ranks_and_members_hold_the_same(layout: Layout) -> None:
    name, mesh, options = layout
    job, table = small.prepared(name, mesh, options=options)
    classes = fold(job.graph, job.mesh, table)
    members = [c.members(job.mesh).tolist() for c in classes]
    assert sorted(rank for group in members for rank in group) == list(range(job.mesh.size))
    for rank_class, group in zip(classes, members, strict=True):
        assert (rank_class.num_ranks, rank_class.representative) == (len(group), group[0])
        held = {tuple(tuple((p.local, p.padded, p.used_shape) for p in specs)
                      for specs in place(job.graph, job.mesh, table, rank).kinds) for rank in group}
        assert len(held) == 1


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_values_are_numbered_as_numpy_does(values: list[int]) -> None:
    """Sorted where they are far apart, counted where they are close."""
    asked = np.array(values, dtype=np.int64)
    assert _numbered(asked).tolist() == np.unique(asked, return_inverse=True)[1].tolist()


def test_even_cuts_make_one_class_a_stage() -> None:
    job, table = small.prepared("megatron", {"pp": 5, "dp_shard": 4, "tp": 2})
    assert [c.num_ranks for c in fold(job.graph, job.mesh, table)] == [8] * 5


def test_an_uneven_cut_separates_the_last_ranks() -> None:
    """8 rows over 3 ranks: 3, 3, 2; 256 rows: 86, 86, 84. The first two ranks are alike."""
    job, table = small.prepared("fsdp2", {"dp_shard": 3})
    assert [c.members(job.mesh).tolist() for c in fold(job.graph, job.mesh, table)] == [[0, 1], [2]]


def test_replicas_of_a_class_are_of_the_class() -> None:
    job, table = small.prepared("fsdp2", {"dp_replicate": 2, "dp_shard": 3})
    assert [c.members(job.mesh).tolist() for c in fold(job.graph, job.mesh, table)] == [[0, 1, 3, 4], [2, 5]]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.one_of(layouts(frameworks=("fsdp2", "automodel")), resharded()))
@example(("fsdp2", {"dp_replicate": 2, "dp_shard": 3, "ep": 2}, {"experts": "ignored"}))
@example(("fsdp2", {"dp_shard": 6, "ep": 2}, {"experts": "fully_shard"}))
@example(("fsdp2", {"dp_shard": 12}, {"reshard_after_forward": 4}))
@example(("fsdp2", {"dp_replicate": 2, "dp_shard": 6}, {"reshard_after_forward": 3}))
def test_members_of_a_class_meet_the_same_classes(layout: Layout) -> None:
    """Otherwise a rank would wait for one that, standing for its class, never comes."""
    name, mesh, options = layout
    job, table = small.prepared(name, mesh, options=options)
    classes = fold(job.graph, job.mesh, table)
    label = {rank: i for i, c in enumerate(classes) for rank in c.members(job.mesh).tolist()}
    for axis in (name for name in table.communicators if name != "pp"):
        met: dict[int, set[tuple[int, ...]]] = {}
        for rank in range(job.mesh.size):
            met.setdefault(label[rank], set()).add(tuple(sorted(label[r] for r in job.mesh.group(rank, axis))))
        assert all(len(groups) == 1 for groups in met.values()), axis


LAYOUTS: list[tuple[str, dict[str, int], dict[str, Any], dict[str, Any]]] = [
    ("fsdp2", {"dp_replicate": 2, "dp_shard": 6}, {"reshard_after_forward": 3}, {}),
    ("fsdp2", {"dp_shard": 4, "ep": 2}, {"set_last_reshard": False}, {}),
    ("zero3", {"dp_shard": 8}, {"zero_hpz_partition_size": 4}, {}),
    ("megatron", {"dp_replicate": 2, "dp_shard": 4, "tp": 2, "ep": 2, "etp": 1}, {}, {}),
    ("megatron", {"dp_shard": 12, "ep": 2}, {}, {"optimizer": {"name": "dist_muon"}}),
    ("megatron_fsdp", {"dp_shard": 4, "ep": 2}, {}, {}),
    ("automodel", {"dp_shard": 4, "dp_replicate": 2, "ep": 2}, {}, {}),
    ("fsdp1", {"dp_shard": 4, "dp_replicate": 2}, {}, {}), ("ddp", {"dp_replicate": 4}, {}, {}),
]


@pytest.mark.parametrize(("name", "mesh", "options", "training"), LAYOUTS)
def test_a_framework_names_every_axis_on_which_ranks_call_each_other(
        name: str, mesh: dict[str, int], options: dict[str, Any], training: dict[str, Any]) -> None:
    """Classes are refined over those; a group that is not among them could be met by other classes than one's own."""
    _names_all(name, mesh, options, **training)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.one_of(layouts(), resharded()))
def test_any_framework_names_every_axis(layout: Layout) -> None:
    _names_all(*layout)


def _names_all(name: str, mesh: dict[str, int], options: dict[str, Any], **training: Any) -> None:
    job, table = small.prepared(name, mesh, options=options, **training)
    program = small.program_of(name, mesh, options=options, **training)
    called = {axis for _, axis, _ in program.tables.comms if axis not in HOST_WAYS}
    assert {axis for axis in called if job.mesh.axis(axis).size > 1} <= {*table.communicators}


def test_a_hundred_thousand_ranks_are_a_few_classes() -> None:
    job, table = small.prepared("fsdp2", {"dp_replicate": 2048, "dp_shard": 64, "ep": 8})
    classes = fold(job.graph, job.mesh, table)
    assert sum(c.num_ranks for c in classes) == 131_072
    assert len(classes) < 64


def test_unfolded() -> None:
    mesh = Mesh(pp=2, dp_shard=3)
    assert [c.members(mesh).tolist() for c in unfolded(mesh)] == [[rank] for rank in range(6)]
    alone = unfolded_one(mesh, 4)
    assert isinstance(alone, RankClass)
    assert (alone.stage, alone.num_ranks, alone.members(mesh).tolist()) == (1, 1, [4])


@given(st.sets(st.integers(0, 200), min_size=1, max_size=40))
def test_formatted_ranks_can_be_read_back(chosen: set[int]) -> None:
    ranks: IntArray = np.array(sorted(chosen), dtype=np.int64)
    assert [rank for text in format_ranks(ranks) for rank in ranks_of(text)] == sorted(chosen)


@pytest.mark.parametrize(("ranks", "text"), [
    ([7], ("7",)), ([0, 1, 2, 3], ("0-3",)), ([0, 64, 128], ("0-128:64",)), ([0, 1, 2, 9], ("0-2", "9"))])
def test_formats(ranks: list[int], text: tuple[str, ...]) -> None:
    assert format_ranks(np.array(ranks, dtype=np.int64)) == text


@pytest.mark.parametrize(("length", "period", "repeats"), [(7, 8, 1000), (1, 3, 500), (2, 64, 257), (3, 4, 300)])
def test_many_runs_that_are_alike_are_told_by_their_places(length: int, period: int, repeats: int) -> None:
    ranks = (5 + np.arange(0, period * repeats, period)[:, None] + np.arange(length)).ravel()
    text = format_ranks(ranks)
    assert len(text) == length
    assert sorted(rank for one in text for rank in ranks_of(one)) == ranks.tolist()


def test_a_million_ranks_are_told_at_once() -> None:
    """In a time that grows with their number, not with its square, whatever runs they are in."""
    gaps = np.random.default_rng(0).integers(1, 4, 1_000_000)
    ranks: IntArray = np.cumsum(gaps)
    start = time.process_time()
    text = format_ranks(ranks)
    assert time.process_time() - start < 20
    assert sum(len(ranks_of(one)) for one in text) == 1_000_000


def test_coordinates_are_a_number_or_a_range() -> None:
    axis = Axis("dp_shard", 4, 2)
    assert coordinate_text(axis, np.array([4, 5, 12])) == 2
    assert coordinate_text(axis, np.arange(8)) == "0-3"


@given(st.integers(1, 6), st.integers(1, 6), st.sets(st.integers(0, 80), min_size=1))
def test_coordinates_are_those_of_each_rank(size: int, stride: int, ranks: set[int]) -> None:
    axis = Axis("dp_shard", size, stride)
    values = sorted({axis.coordinate(rank) for rank in ranks})
    expected = values[0] if len(values) == 1 else ",".join(format_ranks(np.array(values)))
    assert coordinate_text(axis, np.array(sorted(ranks))) == expected


@pytest.mark.parametrize("mesh", [Mesh(pp=2, dp_replicate=2, dp_shard=6, ep=4), Mesh(dp_shard=4, tp=2, ep=2, etp=2)])
@pytest.mark.parametrize("period", [1, 2, 4, 8, 12, 24])
def test_shortcuts_say_what_the_members_say(mesh: Mesh, period: int) -> None:
    if mesh.stage_size % period:
        return
    for offsets in ([0], list(range(period)), list(range(0, period, 2))):
        repeats = mesh.stage_size // period
        mine = RankClass(mesh.pp - 1, 0, len(offsets) * repeats, np.array(offsets, dtype=np.int64), period)
        members = mine.members(mesh)
        assert mine.rank_text(mesh) == format_ranks(members)
        for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "expert_dp"):
            axis = mesh.axis(name)
            assert mine.coordinates(mesh, axis) == coordinate_text(axis, members), (name, offsets)
