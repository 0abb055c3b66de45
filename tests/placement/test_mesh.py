"""Ranks as digits: both views of a stage, against nested loops."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import truth_cases
from simcore.placement.mesh import Mesh

MESH = Mesh(pp=2, dp_replicate=3, dp_shard=4, cp=2, tp=2, ep=4, etp=2)


def test_sizes() -> None:
    assert (MESH.size, MESH.stage_size, MESH.expert_dp) == (96, 48, 6)
    assert Mesh().size == 1


def test_the_dense_view_counts_tp_fastest() -> None:
    places = product(range(2), range(3), range(4), range(2), range(2))
    for rank, place in enumerate(places):
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        assert tuple(MESH.axis(name).coordinate(rank) for name in names) == place


def test_the_expert_view_recuts_a_stage_with_etp_fastest() -> None:
    for rank, place in enumerate(product(range(2), range(6), range(4), range(2))):
        assert tuple(MESH.axis(name).coordinate(rank) for name in ("pp", "expert_dp", "ep", "etp")) == place


@pytest.mark.parametrize(("name", "size"), [("dp", 12), ("dp_shard_cp", 8), ("dp_cp", 24), ("world", 96)])
def test_flattened_views(name: str, size: int) -> None:
    assert MESH.axis(name).size == size


@pytest.mark.parametrize("name", ["tp", "cp", "dp_shard", "dp_cp", "dp_shard_cp", "ep", "etp", "expert_dp", "pp",
                                  "dp_replicate", "world"])
def test_groups_of_an_axis_partition_the_ranks(name: str) -> None:
    groups = {tuple(MESH.group(rank, name)) for rank in range(MESH.size)}
    assert sorted(rank for group in groups for rank in group) == list(range(MESH.size))
    assert {len(group) for group in groups} == {MESH.axis(name).size}
    assert all(rank in MESH.group(rank, name) for rank in range(MESH.size))


@pytest.mark.parametrize(("row", "file"), [pytest.param(row, file, id=f"{file[7:16]}-{number}") for file in
                                           truth_cases.GROUPS for number, row in enumerate(truth_cases.rows(file))])
def test_groups_are_those_of_the_real_frameworks(row: dict[str, Any], file: str) -> None:
    mesh = Mesh(**row["mesh"])
    assert len(row["groups"]) >= 3, file
    for axis, groups in row["groups"].items():
        assert {tuple(mesh.group(rank, axis)) for rank in range(mesh.size)} == set(map(tuple, groups)), axis


def test_ranks_of_a_group_differ_on_its_axis_alone() -> None:
    group = list(MESH.group(53, "cp"))
    assert [MESH.axis("cp").coordinate(rank) for rank in group] == [0, 1]
    for other in ("pp", "dp_replicate", "dp_shard", "tp"):
        assert len({MESH.axis(other).coordinate(rank) for rank in group}) == 1


def test_a_part_of_an_axis_is_its_fastest_digits() -> None:
    part = MESH.axis("dp_shard_cp/4")
    assert (part.size, part.stride) == (4, 2)
    assert list(MESH.group(0, "dp_shard_cp/4")) == [0, 2, 4, 6]


def test_ranks_that_lie_apart_on_an_axis_are_its_slowest_digits() -> None:
    apart = MESH.axis("dp_shard_cp%4")
    assert (apart.size, apart.stride) == (MESH.axis("dp_shard_cp").size // 4, 8)
    assert list(MESH.group(0, "dp_shard_cp%4")) == [rank * 8 for rank in range(apart.size)]


def test_many_ranks_at_once() -> None:
    ranks = np.arange(96)
    axis = MESH.axis("dp_shard")
    assert axis.coordinates(ranks).tolist() == [axis.coordinate(rank) for rank in range(96)]


def test_copies_of_an_experts_group() -> None:
    """expert_dp 6 in 3 replicas: two ranks share a shard, the copies are 2 x 8 ranks apart."""
    axis = MESH.axis("expert_dp_replicate")
    assert (axis.size, axis.stride) == (3, 16)


def test_an_unknown_axis_is_an_error() -> None:
    with pytest.raises(KeyError):
        MESH.axis("sp")
