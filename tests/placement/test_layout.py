"""Cuts of a dimension against torch.chunk's rule, paddings, and which collective turns one layout into another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import IllegalLayout
from simcore.placement.layout import (
    COPIES,
    Blocks,
    Flat,
    Local,
    Partial,
    Placement,
    Placements,
    Replicate,
    Shard,
    collective,
    local_shape,
    padded_numel,
    require_even,
    shard_intervals,
    shard_rows,
)
from simcore.placement.mesh import Mesh

SIZES = st.integers(1, 300)


def chunked(size: int, parts: int) -> list[int]:
    """Rows of each part, by cutting a list."""
    chunk = math.ceil(size / parts)
    rows = list(range(size))
    return [len(rows[i * chunk:(i + 1) * chunk]) for i in range(parts)]


@given(SIZES, st.integers(1, 70))
def test_rows_are_those_of_chunks(size: int, parts: int) -> None:
    rows = [shard_rows(size, parts, coordinate) for coordinate in range(parts)]
    assert rows == chunked(size, parts)
    assert sum(rows) == size


@given(SIZES, st.integers(1, 70))
def test_intervals_are_where_rows_change(size: int, parts: int) -> None:
    rows = chunked(size, parts)
    assert list(shard_intervals(size, parts)) == [i for i in range(1, parts) if rows[i] != rows[i - 1]]


def test_local_shapes_follow_cuts_in_order() -> None:
    mesh = Mesh(dp_shard=4, tp=2)
    placements: Placements = (("tp", Shard(0)), ("dp_shard", Shard(0)))
    assert [local_shape(1, (10, 3), placements, mesh, rank) for rank in (0, 6)] == [(1, 2, 3), (1, 0, 3)]
    assert local_shape(8, (4, 6), (("tp", Shard(COPIES)), ("dp_shard", Shard(1))), mesh, 7) == (4, 4, 0)


@given(SIZES, st.integers(1, 20))
def test_padding_is_the_largest_part_everywhere(size: int, parts: int) -> None:
    mesh, placements = Mesh(dp_shard=parts), (("dp_shard", Shard(0)),)
    assert padded_numel(1, (size, 7), placements, mesh) == 7 * max(chunked(size, parts))


def test_an_even_cut_refuses_a_remainder() -> None:
    placements: Placements = (("tp", Shard(0, even=True)),)
    require_even("w", (8, 3), 1, placements, Mesh(tp=4), "rule")
    with pytest.raises(IllegalLayout) as refused:
        require_even("w", (9, 3), 1, placements, Mesh(tp=4), "rule")
    (problem,) = refused.value.problems
    assert (problem.where, problem.rule) == ("mesh.tp", "rule")
    assert "w: dimension 0" in problem.message
    assert "divisible by 4" in problem.message


def test_an_even_cut_looks_at_what_earlier_cuts_left() -> None:
    placements: Placements = (("dp_shard", Shard(0)), ("tp", Shard(0, even=True)))
    require_even("w", (10,), 1, placements, Mesh(dp_shard=3, tp=4), "rule")  # ceil(10 / 3) is 4
    with pytest.raises(IllegalLayout):
        require_even("w", (16,), 1, placements, Mesh(dp_shard=3, tp=4), "rule")  # ceil(16 / 3) is 6


def test_copies_are_named() -> None:
    with pytest.raises(IllegalLayout, match="copies must be divisible by 2"):
        require_even("w", (4,), 3, (("tp", Shard(COPIES, even=True)),), Mesh(tp=2), "rule")


@pytest.mark.parametrize(("source", "destination", "name"), [
    (Shard(0), Replicate(), "all_gather"), (Flat("bucket"), Replicate(), "all_gather"),
    (Partial(), Shard(0), "reduce_scatter"), (Partial(), Flat("bucket"), "reduce_scatter"),
    (Partial(), Replicate(), "all_reduce"), (Shard(0), Shard(1), "all_to_all"), (Shard(0), Shard(0), None),
    (Replicate(), Shard(0), None), (Replicate(), Replicate(), None), (Local(), Local(), None)])
def test_the_collective_of_a_move(source: Placement, destination: Placement, name: str | None) -> None:
    assert collective(source, destination) == name


@pytest.mark.parametrize(("numel", "whole", "num_bytes"), [
    (4096, True, 4096 + 4 * 16 + 1024), (4095, True, 2 * 4095), (4096 + 8, True, 2 * 4104),
    (4096 + 8, False, 4104 + 4 * 17 + 1024), (0, False, 0)])
def test_blocks_of_values_share_a_scale(numel: int, whole: bool, num_bytes: int) -> None:
    assert Blocks(256, 4096, "bf16", table=1024, whole=whole).num_bytes(numel, "int8") == num_bytes
